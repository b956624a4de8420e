// libmicrohttpd around serve_answer and live.h: a few threads that answer, one that looks at files, and this one, which
// waits for a signal and ends the connections of clients that take too long.
#include "serve/http.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "serve/access.h"
#include "serve/live.h"
#include "serve/routes.h"
#include "serve/site.h"

#if !HEARTH_HAVE_MICROHTTPD

Status serve_run(ServeSite *site, const ServeOptions *options) {
    (void)site, (void)options;
    return status_hint(status_runtime("this build has no HTTP server"),
                       "install libmicrohttpd-dev and build again; `hearth report` writes a page without a server");
}

#else

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ANSWERING_THREADS = 4,
    CONNECTIONS_MOST = 512,
    CONNECTIONS_OF_ONE = 320,    // from one address
    CONNECTION_BYTES = 24 << 10, // of a request's line and headers; more is refused
    REQUEST_SECONDS = 10,        // for a client to say what it wants
    REPLY_SECONDS = 60,          // and to take the answer; streams of events are exempt
    IDLE_SECONDS = 40,           // without a byte in either direction; streams have a beat
};

typedef enum HttpPhase { HTTP_ASKING, HTTP_ANSWERED, HTTP_STREAMING } HttpPhase;

typedef struct HttpConnection {
    int fd;
    HttpPhase phase;
    double since;
    char *target; // of its last request; libmicrohttpd does not always tell when a request is over
    struct HttpConnection *next;
} HttpConnection;

typedef struct HttpServer {
    ServeSite *site;
    Live *live;
    const char *bound; // its address, as it was given
    bool local;        // only this machine can reach it
    const char *token; // NULL: none is asked for
    char cookie[32];   // its name; cookies are shared by all ports of a host
    pthread_mutex_t lock;
    HttpConnection *connections;
} HttpServer;

// ---- connections ----------------------------------------------------------------------------------------------------

static void on_connection(void *context, struct MHD_Connection *connection, void **own,
                          enum MHD_ConnectionNotificationCode code) {
    HttpServer *server = context;
    pthread_mutex_lock(&server->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        HttpConnection *client = xcalloc(1, sizeof *client);
        *client = (HttpConnection){MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                                   HTTP_ASKING, clock_seconds(), NULL, server->connections};
        server->connections = client;
        *own = client;
    } else {
        HttpConnection **at = &server->connections, *client = *own;
        while (*at != client)
            at = &(*at)->next;
        *at = client->next;
        free(client->target);
        free(client);
        *own = NULL;
    }
    pthread_mutex_unlock(&server->lock);
}

static HttpConnection *connection_of(struct MHD_Connection *connection) {
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static void connection_enter(HttpServer *server, struct MHD_Connection *connection, HttpPhase phase) {
    HttpConnection *client = connection_of(connection);
    pthread_mutex_lock(&server->lock);
    client->phase = phase;
    client->since = clock_seconds();
    pthread_mutex_unlock(&server->lock);
}

// A client that sends a byte now and then is never idle, so its time is counted as a whole.
static void end_slow_connections(HttpServer *server) {
    double now = clock_seconds();
    pthread_mutex_lock(&server->lock);
    for (HttpConnection *client = server->connections; client; client = client->next) {
        double most = client->phase == HTTP_ASKING ? REQUEST_SECONDS : REPLY_SECONDS;
        if (client->phase != HTTP_STREAMING && now - client->since > most) shutdown(client->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&server->lock);
}

// ---- requests -------------------------------------------------------------------------------------------------------

static void *on_target(void *context, const char *target, struct MHD_Connection *connection) {
    (void)context;
    HttpConnection *client = connection_of(connection);
    free(client->target);
    client->target = text_copy(target);
    return NULL;
}

static void on_completed(void *context, struct MHD_Connection *connection, void **own,
                         enum MHD_RequestTerminationCode code) {
    (void)own, (void)code;
    connection_enter(context, connection, HTTP_ASKING);
}

static void stream_sleep(void *client) {
    MHD_suspend_connection(client);
}

static void stream_wake(void *client) {
    MHD_resume_connection(client);
}

static ssize_t stream_read(void *context, uint64_t position, char *out, size_t room) {
    (void)position;
    ssize_t bytes = live_read(context, out, room);
    return bytes < 0 ? MHD_CONTENT_READER_END_OF_STREAM : bytes;
}

static void stream_close(void *context) {
    live_reader_close(context);
}

static struct MHD_Response *response_make(HttpServer *server, struct MHD_Connection *connection, ServeReply *reply) {
    if (reply->stream) {
        const char *last = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Last-Event-ID");
        int64_t from = reply->stream_from;
        if (last) text_to_int64(last, &from);
        LiveReader *reader = live_open(server->live, reply->stream, from, connection);
        connection_enter(server, connection, HTTP_STREAMING);
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, stream_read, reader, stream_close);
    }
    connection_enter(server, connection, HTTP_ANSWERED);
    if (reply->page)
        return MHD_create_response_from_buffer(reply->page_size, (void *)reply->page, MHD_RESPMEM_PERSISTENT);
    TextBuffer body = reply->body;
    reply->body = (TextBuffer){0};
    return MHD_create_response_from_buffer(body.length, body.data, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result reply_send(HttpServer *server, struct MHD_Connection *connection, ServeReply *reply,
                                  const char *header, const char *value) {
    static const char *const headers[][2] = {
        {"Cache-Control", "no-store"},
        {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src "
                                    "'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
                                    "frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
    };
    struct MHD_Response *response = response_make(server, connection, reply);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", reply->type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
    if (header) MHD_add_response_header(response, header, value);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    serve_reply_free(reply);
    return result;
}

// An error ends the connection: what follows may be the rest of a request that was not read.
static enum MHD_Result refuse(HttpServer *server, struct MHD_Connection *connection, int http_status, Status status) {
    ServeReply reply = {0};
    serve_reply_error(&reply, http_status, status);
    return reply_send(server, connection, &reply, "Connection", "close");
}

static const char *header_of(struct MHD_Connection *connection, const char *name) {
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

// NULL: it may go on.
static Status check_sender(const HttpServer *server, struct MHD_Connection *connection) {
    const char *host = header_of(connection, "Host"), *origin = header_of(connection, "Origin");
    const char *site = header_of(connection, "Sec-Fetch-Site"), *mode = header_of(connection, "Sec-Fetch-Mode");
    if (server->local && !(host && access_host_is_local(host, server->bound)))
        return status_hint(status_usage("this server is for this machine alone, and was asked under another name"),
                           "open it as http://localhost or http://127.0.0.1");
    if (origin && !(host && access_origin_same(origin, host)))
        return status_usage("the page that asks is not one of this server's");
    if (site && strcmp(site, "cross-site") == 0 && !(mode && strcmp(mode, "navigate") == 0))
        return status_usage("the page that asks is not one of this server's");
    return NULL;
}

typedef enum TokenPlace { TOKEN_MISSING, TOKEN_KNOWN, TOKEN_IN_TARGET } TokenPlace;

static TokenPlace check_token(const HttpServer *server, struct MHD_Connection *connection) {
    if (!server->token) return TOKEN_KNOWN;
    const char *bearer = header_of(connection, "Authorization");
    const char *cookie = MHD_lookup_connection_value(connection, MHD_COOKIE_KIND, server->cookie);
    const char *given = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "token");
    if (given && access_token_same(given, server->token)) return TOKEN_IN_TARGET;
    if (bearer && text_starts_with(bearer, "Bearer ") && access_token_same(bearer + 7, server->token))
        return TOKEN_KNOWN;
    return cookie && access_token_same(cookie, server->token) ? TOKEN_KNOWN : TOKEN_MISSING;
}

// The token leaves the address, so that it is in no history and no link.
static enum MHD_Result send_cookie(HttpServer *server, struct MHD_Connection *connection, const char *target) {
    char *cookie = text_format("%s=%s; Path=/; HttpOnly; SameSite=Lax", server->cookie, server->token);
    char *clean = access_target_without_token(target);
    ServeReply reply = {.status = 303, .type = "text/plain; charset=utf-8"};
    text_buffer_add(&reply.body, "", 0);
    struct MHD_Response *response = response_make(server, connection, &reply);
    MHD_add_response_header(response, "Location", clean);
    MHD_add_response_header(response, "Set-Cookie", cookie);
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)reply.status, response);
    MHD_destroy_response(response);
    free(clean);
    free(cookie);
    return result;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *body, size_t *body_size, void **own) {
    (void)url, (void)version, (void)body, (void)body_size, (void)own;
    HttpServer *server = context;
    const char *target = connection_of(connection)->target, *length = header_of(connection, "Content-Length");
    bool head = strcmp(method, "HEAD") == 0;
    if (strcmp(method, "GET") != 0 && !head) {
        ServeReply reply = {0};
        serve_reply_error(&reply, 405, status_usage("this server only shows: GET and HEAD"));
        return reply_send(server, connection, &reply, "Allow", "GET, HEAD");
    }
    if ((length && strcmp(length, "0") != 0) || header_of(connection, "Transfer-Encoding"))
        return refuse(server, connection, 413, status_usage("a request has no body here"));
    Status status = check_sender(server, connection);
    if (status) return refuse(server, connection, 403, status);
    TokenPlace token = check_token(server, connection);
    if (token == TOKEN_MISSING)
        return refuse(server, connection, 401,
                      status_hint(status_usage("this server asks for a token"),
                                  "open the address that `hearth serve` printed, which ends with ?token=..., or send "
                                  "it as Authorization: Bearer"));
    if (token == TOKEN_IN_TARGET) return send_cookie(server, connection, target);
    ServeReply reply;
    serve_answer(server->site, target, &reply);
    if (reply.stream && head) {
        free(reply.stream);
        reply.stream = NULL;
        text_buffer_add(&reply.body, "", 0);
    }
    return reply_send(server, connection, &reply, NULL, NULL);
}

// ---- the server -----------------------------------------------------------------------------------------------------

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static Status listen_at(const ServeOptions *options, int *listener, bool *local) {
    struct addrinfo wanted = {.ai_family = AF_UNSPEC,
                              .ai_socktype = SOCK_STREAM,
                              .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE},
                    *found = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", options->port);
    if (getaddrinfo(options->bind, port, &wanted, &found) != 0)
        return status_hint(status_usage("--bind %s is not an address", options->bind),
                           "write it in numbers: 127.0.0.1, ::1, 0.0.0.0 for every one of this machine");
    *local = is_loopback(found->ai_addr);
    *listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    Status status = NULL;
    if (*listener < 0) status = status_errno("cannot make a socket");
    if (!status) setsockopt(*listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (!status && (bind(*listener, found->ai_addr, found->ai_addrlen) != 0 || listen(*listener, 511) != 0)) {
        bool taken = errno == EADDRINUSE;
        status = status_errno("cannot listen at %s port %d", options->bind, options->port);
        if (taken) status = status_hint(status, "another program does; --port N takes another, --port 0 any");
        close(*listener);
    }
    freeaddrinfo(found);
    return status;
}

static void print_absence(ServeSite *site) {
    char **names;
    size_t count;
    Status status = serve_site_names(site, &names, &count);
    if (!status && !count)
        printf("There are no runs in %s yet. Looked for are %s.\n", serve_site_folder(site), SERVE_LOOKED_FOR);
    if (!status) names_free(names, count);
    status_free(status); // every answer will say it
}

static void print_address(const ServeOptions *options, const HttpServer *server, int port) {
    bool six = strchr(options->bind, ':') != NULL;
    printf("hearth serve: http://%s%s%s:%d/%s%s\n", six ? "[" : "", options->bind, six ? "]" : "", port,
           server->token ? "?token=" : "", server->token ? server->token : "");
    print_absence(server->site);
    printf("Ctrl-C ends it.\n");
    fflush(stdout);
}

static int port_of(int listener) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &size);
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

static void wait_for_signal(HttpServer *server, const sigset_t *ends) {
    const struct timespec second = {.tv_sec = 1};
    while (sigtimedwait(ends, NULL, &second) < 0)
        end_slow_connections(server);
}

static Status serve_until_signal(HttpServer *server, const ServeOptions *options, int listener, const sigset_t *ends) {
    const LiveClients clients = {stream_sleep, stream_wake};
    server->live = live_start(&clients);
    struct MHD_Daemon *daemon =
        MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, server,
                         MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)ANSWERING_THREADS,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MOST, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                         (unsigned)CONNECTIONS_OF_ONE, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                         MHD_OPTION_URI_LOG_CALLBACK, on_target, server, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                         server, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
    Status status = NULL;
    if (daemon) {
        print_address(options, server, port_of(listener));
        wait_for_signal(server, ends);
    } else {
        status = status_errno("cannot start the HTTP server");
        close(listener);
    }
    live_end(server->live); // streams end, sleeping ones wake: libmicrohttpd stops only without sleepers
    if (daemon) MHD_stop_daemon(daemon);
    live_close(server->live);
    return status;
}

Status serve_run(ServeSite *site, const ServeOptions *options) {
    HttpServer server = {.site = site, .bound = options->bind, .token = options->token};
    char made[ACCESS_TOKEN_CHARACTERS + 1];
    int listener = -1;
    sigset_t ends;
    if (server.token && (strlen(server.token) < 8 || server.token[strspn(server.token, "0123456789abcdefghijklmnopqrstu"
                                                                                       "vwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
                                                                                       "Z-_.~")]))
        return status_usage("--token is at least 8 letters, digits or -_.~");
    TRY(listen_at(options, &listener, &server.local));
    if (!server.local && !server.token) {
        access_token_make(made);
        server.token = made;
    }
    snprintf(server.cookie, sizeof server.cookie, "hearth_token_%d", port_of(listener));
    json_object_seed(0); // before there are threads
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL); // before there are threads, which inherit it
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&server.lock, NULL);
    Status status = serve_until_signal(&server, options, listener, &ends);
    pthread_mutex_destroy(&server.lock);
    return status;
}

#endif
