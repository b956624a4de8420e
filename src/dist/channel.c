#include "dist/channel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_MILLISECONDS = 3000, FRAME_MAX = 64 << 20 };

static void addresses_of_interfaces(ChannelAddress *address) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) return;
    for (const struct ifaddrs *at = all; at && address->count < CHANNEL_ADDRESSES_MAX; at = at->ifa_next) {
        if (!at->ifa_addr || (at->ifa_flags & IFF_LOOPBACK) || !(at->ifa_flags & IFF_UP)) continue;
        int family = at->ifa_addr->sa_family;
        const struct sockaddr_in6 *six = (const void *)at->ifa_addr;
        if (family != AF_INET && family != AF_INET6) continue;
        if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue; // would need its interface's name
        socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        char *text = address->text[address->count];
        if (getnameinfo(at->ifa_addr, length, text, CHANNEL_ADDRESS_TEXT, NULL, 0, NI_NUMERICHOST) == 0)
            address->count++;
    }
    freeifaddrs(all);
}

static Status listen_at(int fd, const struct sockaddr *where, socklen_t length, ChannelAddress *address) {
    struct sockaddr_in6 bound = {0}; // the larger of the two kinds
    socklen_t size = sizeof bound;
    if (bind(fd, where, length) || listen(fd, SOMAXCONN) || getsockname(fd, (struct sockaddr *)&bound, &size))
        return status_errno("rank 0 cannot listen for the other ranks");
    address->port = ntohs(bound.sin6_port); // at the same place for IPv4
    return NULL;
}

Status channel_listen(int *out, ChannelAddress *address, bool everywhere) {
    *address = (ChannelAddress){0};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK)};
    int no = 0, type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    int fd = everywhere ? socket(AF_INET6, type, 0) : -1; // one socket for both families, where there are both
    bool both = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0;
    Status status = both ? listen_at(fd, (struct sockaddr *)&six, sizeof six, address) : NULL;
    if (!both || status) {
        status_free(status);
        if (fd >= 0) close(fd);
        fd = socket(AF_INET, type, 0);
        status = fd < 0 ? status_errno("no socket for the channel between ranks")
                        : listen_at(fd, (struct sockaddr *)&four, sizeof four, address);
    }
    if (status && fd >= 0) close(fd);
    if (status) return status;
    if (everywhere) addresses_of_interfaces(address);
    *out = fd;
    return NULL;
}

static bool connected_in_time(int fd) {
    struct pollfd poller = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof error;
    return poll(&poller, 1, CONNECT_MILLISECONDS) == 1 && !getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) &&
           error == 0;
}

static int connect_to(const char *host, int port) {
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, service, &hints, &found)) return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool fine = fd >= 0 && (connect(fd, found->ai_addr, found->ai_addrlen) == 0 ||
                            (errno == EINPROGRESS && connected_in_time(fd)));
    freeaddrinfo(found);
    if (!fine && fd >= 0) close(fd);
    return fine ? fd : -1;
}

bool channel_connect(Channel *channel, const ChannelAddress *address, bool here) {
    int fd = here ? connect_to("127.0.0.1", address->port) : -1;
    for (int i = 0; fd < 0 && i < address->count; i++)
        fd = connect_to(address->text[i], address->port);
    *channel = (Channel){.fd = fd, .closed = fd < 0};
    if (fd >= 0) channel_adopt(channel, fd);
    return fd >= 0;
}

void channel_adopt(Channel *channel, int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    *channel = (Channel){.fd = fd};
}

void channel_close(Channel *channel) {
    if (channel->fd >= 0) close(channel->fd);
    text_buffer_free(&channel->in);
    text_buffer_free(&channel->out);
    *channel = (Channel){.fd = -1, .closed = true};
}

void channel_send(Channel *channel, uint32_t type, const void *data, size_t length) {
    uint32_t header[2] = {type, (uint32_t)length};
    if (channel->closed) return;
    text_buffer_add(&channel->out, (const char *)header, sizeof header);
    if (length) text_buffer_add(&channel->out, data, length);
    channel_flush(channel);
}

static bool would_block(void) {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

void channel_flush(Channel *channel) {
    while (!channel->closed && channel->out.length) {
        ssize_t sent = send(channel->fd, channel->out.data, channel->out.length, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (!would_block()) channel->closed = true;
            return;
        }
        channel->out.length -= (size_t)sent;
        memmove(channel->out.data, channel->out.data + sent, channel->out.length);
    }
}

void channel_receive(Channel *channel) {
    char part[4096];
    if (channel->taken) {
        channel->in.length -= channel->taken;
        memmove(channel->in.data, channel->in.data + channel->taken, channel->in.length);
        channel->taken = 0;
    }
    while (!channel->closed) {
        ssize_t got = recv(channel->fd, part, sizeof part, MSG_DONTWAIT);
        if (got > 0) {
            text_buffer_add(&channel->in, part, (size_t)got);
        } else {
            if (got == 0 || !would_block()) channel->closed = true;
            return;
        }
    }
}

bool channel_next(Channel *channel, ChannelFrame *frame) {
    uint32_t header[2];
    size_t left = channel->in.length - channel->taken;
    if (left < sizeof header) return false;
    const char *at = channel->in.data + channel->taken;
    memcpy(header, at, sizeof header);
    if (header[1] > FRAME_MAX) { // not one of ours
        channel->closed = true;
        return false;
    }
    if (left < sizeof header + header[1]) return false;
    *frame = (ChannelFrame){header[0], header[1], at + sizeof header};
    channel->taken += sizeof header + header[1];
    return true;
}
