// Small framed messages over TCP between rank 0 and each other rank, for the watchdog (dist/watch.h). Nothing here
// blocks once the connection stands, so that a peer that was stopped cannot stop this rank too.
#pragma once

#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Channel {
    int fd;
    TextBuffer in, out;
    size_t taken; // bytes of `in` that were handed out as frames
    bool closed;  // by the other side, or broken
} Channel;

typedef struct ChannelFrame {
    uint32_t type, length;
    const char *data; // until the next channel_receive
} ChannelFrame;

// Where rank 0 listens. It travels as bytes, between machines of one kind.
enum { CHANNEL_ADDRESSES_MAX = 16, CHANNEL_ADDRESS_TEXT = 48 };
typedef struct ChannelAddress {
    int port, count;
    char text[CHANNEL_ADDRESSES_MAX][CHANNEL_ADDRESS_TEXT]; // numeric addresses of its interfaces
} ChannelAddress;

// everywhere: also for other hosts; else on this one only. *fd is the listening socket.
Status channel_listen(int *fd, ChannelAddress *address, bool everywhere);
// Tries each address for some seconds. here: rank 0 is on the same host. False when none answers.
bool channel_connect(Channel *channel, const ChannelAddress *address, bool here);
void channel_adopt(Channel *channel, int fd); // an accepted connection
void channel_close(Channel *channel);

void channel_send(Channel *channel, uint32_t type, const void *data, size_t length);
void channel_flush(Channel *channel);                     // as much as the socket takes
void channel_receive(Channel *channel);                   // what is there
bool channel_next(Channel *channel, ChannelFrame *frame); // the next whole frame
