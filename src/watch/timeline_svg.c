#include "watch/timeline_svg.h"

#include <math.h>
#include <stdbool.h>

enum { LANE = 26, BAR = 20, REDUCE_BAR = 6, LEFT = 60, WIDTH = 1000, TOP = 24, TITLE = 20, LANES_MAX = 64 };

static const char *const colours[] = {[SIMULATE_FORWARD] = "#4c78a8",
                                      [SIMULATE_BACKWARD] = "#f28e2b",
                                      [SIMULATE_SEND] = "#bab0ac",
                                      [SIMULATE_REDUCE] = "#59a14f",
                                      [SIMULATE_OPTIMIZER] = "#b07aa1"};
static const char *const names[] = {"forward", "backward", "send", "reduce gradients", "optimizer"};

static void event_bar(TextBuffer *out, const SimulateEvent *event, double scale) {
    bool thin = event->kind == SIMULATE_REDUCE || event->kind == SIMULATE_SEND;
    double x = LEFT + event->start * scale, width = (event->end - event->start) * scale;
    int y = TOP + event->stage * LANE + (thin ? BAR : 0), height = thin ? REDUCE_BAR - 1 : BAR - 1;
    text_buffer_format(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>%s", x, y,
                       width, height, colours[event->kind], event->chunk % 2 && !thin ? " fill-opacity=\"0.65\"" : "",
                       names[event->kind]);
    if (event->kind <= SIMULATE_SEND) text_buffer_format(out, " of micro-batch %d", event->micro_batch);
    text_buffer_format(out, ", %.3f to %.3f ms</title></rect>\n", 1e3 * event->start, 1e3 * event->end);
    if (!thin && event->kind != SIMULATE_OPTIMIZER && width > 14)
        text_buffer_format(out, "<text x=\"%.2f\" y=\"%d\" fill=\"#fff\" text-anchor=\"middle\">%d</text>\n",
                           x + width / 2, y + 14, event->micro_batch);
}

static int lane_count(const SimulateResult *result) {
    return result->stages < LANES_MAX ? result->stages : LANES_MAX;
}

static int picture_height(const SimulateResult *result) {
    return TOP + lane_count(result) * LANE + 24;
}

static void draw_timeline(const SimulateResult *result, double seconds, TextBuffer *out) {
    int lanes = lane_count(result);
    double scale = (WIDTH - LEFT - 10) / seconds;
    text_buffer_format(out,
                       "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
                       "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                       WIDTH, picture_height(result));
    for (int i = 0; i <= SIMULATE_OPTIMIZER; i++)
        text_buffer_format(out,
                           "<rect x=\"%d\" y=\"6\" width=\"10\" height=\"10\" fill=\"%s\"/>"
                           "<text x=\"%d\" y=\"15\">%s</text>\n",
                           LEFT + 130 * i, colours[i], LEFT + 130 * i + 14, names[i]);
    for (int lane = 0; lane < lanes; lane++)
        text_buffer_format(out,
                           "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f2f2f2\"/>"
                           "<text x=\"4\" y=\"%d\">stage %d</text>\n",
                           LEFT, TOP + lane * LANE, WIDTH - LEFT - 10, BAR - 1, TOP + lane * LANE + 14, lane);
    for (int i = 0; i < result->event_count; i++)
        if (result->events[i].stage < lanes) event_bar(out, &result->events[i], scale);
    text_buffer_format(out,
                       "<text x=\"%d\" y=\"%d\">0</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.1f ms; stages "
                       "idle %.1f %% of the compute time</text>\n</svg>\n",
                       LEFT, TOP + lanes * LANE + 16, WIDTH - 10, TOP + lanes * LANE + 16, 1e3 * result->seconds,
                       100 * result->bubble);
}

void timeline_svg(const SimulateResult *result, TextBuffer *out) {
    draw_timeline(result, result->seconds, out);
}

void timeline_svg_pair(const SimulateResult *const results[2], const char *const names[2], TextBuffer *out) {
    double seconds = fmax(results[0]->seconds, results[1]->seconds);
    int y = 0, height = picture_height(results[0]) + picture_height(results[1]) + 2 * TITLE;
    text_buffer_format(out,
                       "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
                       "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                       WIDTH, height);
    for (int i = 0; i < 2; i++) {
        int each = picture_height(results[i]);
        text_buffer_format(out, "<text x=\"4\" y=\"%d\">%s</text>\n<svg y=\"%d\" width=\"%d\" height=\"%d\">\n",
                           y + TITLE - 6, names[i], y + TITLE, WIDTH, each);
        draw_timeline(results[i], seconds, out);
        text_buffer_format(out, "</svg>\n");
        y += TITLE + each;
    }
    text_buffer_format(out, "</svg>\n");
}
