// libmicrohttpd around serve_answer.
#include "serve/http.h"

#include "base/text.h"
#include "serve/routes.h"

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
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct HttpRequest {
    char *target;
    bool begun;
} HttpRequest;

static void *on_target(void *context, const char *target, struct MHD_Connection *connection) {
    (void)context, (void)connection;
    HttpRequest *request = xcalloc(1, sizeof *request);
    request->target = text_copy(target);
    return request;
}

static void on_completed(void *context, struct MHD_Connection *connection, void **own,
                         enum MHD_RequestTerminationCode code) {
    (void)context, (void)connection, (void)code;
    HttpRequest *request = *own;
    if (request) free(request->target);
    free(request);
    *own = NULL;
}

static enum MHD_Result send_reply(struct MHD_Connection *connection, ServeReply *reply) {
    struct MHD_Response *response =
        reply->page ? MHD_create_response_from_buffer(reply->page_size, (void *)reply->page, MHD_RESPMEM_PERSISTENT)
                    : MHD_create_response_from_buffer(reply->body.length, reply->body.data, MHD_RESPMEM_MUST_FREE);
    if (!reply->page) reply->body = (TextBuffer){0};
    MHD_add_response_header(response, "Content-Type", reply->type);
    enum MHD_Result result = MHD_queue_response(connection, (unsigned)reply->status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *body, size_t *body_size, void **own) {
    (void)url, (void)method, (void)version, (void)body, (void)body_size;
    HttpRequest *request = *own;
    if (!request->begun) {
        request->begun = true;
        return MHD_YES;
    }
    ServeReply reply;
    serve_answer(context, request->target, &reply);
    enum MHD_Result result = send_reply(connection, &reply);
    serve_reply_free(&reply);
    return result;
}

Status serve_run(ServeSite *site, const ServeOptions *options) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options->port)};
    if (inet_pton(AF_INET, options->bind, &address.sin_addr) != 1)
        return status_usage("--bind %s is not an address", options->bind);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    struct MHD_Daemon *daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, on_request, site,
                                                 MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_URI_LOG_CALLBACK, on_target,
                                                 NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
    if (!daemon) return status_errno("cannot listen at %s port %d", options->bind, options->port);
    printf("hearth serve: http://%s:%d/\n", options->bind,
           (int)MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
    fflush(stdout);
    int got;
    sigwait(&ends, &got);
    MHD_stop_daemon(daemon);
    return NULL;
}

#endif
