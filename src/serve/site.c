// The folder of runs, and what was made of it last.
#include "serve/site.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CACHE_ENTRIES = 16 };

// Of the files that answers are made of, and of the lock: it changes when one of them does.
typedef struct RunStamp {
    int64_t size[4], time[4], locked; // members of one type: compared as bytes
} RunStamp;

typedef struct CachedSummary {
    RunSummary summary;
    RunStamp stamp;
    double due; // when it may be read again
    bool listed;
} CachedSummary;

typedef struct CachedReply {
    char *key;
    RunStamp *stamps; // [count]
    int count;
    double due, used;
    ServeReply reply;
} CachedReply;

struct ServeSite {
    char *folder, *whole; // as given, and without links
    bool single;          // the folder is a run
    ServePrepare prepare;
    void *context;
    pthread_mutex_t summaries_lock, replies_lock;
    CachedSummary *summaries;
    size_t summary_count;
    CachedReply replies[CACHE_ENTRIES];
};

Status serve_site_open(ServeSite **site, const char *folder, ServePrepare prepare, void *context) {
    char *whole = file_is_directory(folder) ? realpath(folder, NULL) : NULL;
    if (!whole)
        return status_hint(status_usage("there is no folder %s", folder),
                           "hearth serve FOLDER shows the runs of another; train.runs says where runs go");
    *site = xcalloc(1, sizeof **site);
    **site = (ServeSite){.folder = text_copy(folder),
                         .whole = whole,
                         .single = run_directory_is(folder),
                         .prepare = prepare,
                         .context = context};
    pthread_mutex_init(&(*site)->summaries_lock, NULL);
    pthread_mutex_init(&(*site)->replies_lock, NULL);
    return NULL;
}

static void cached_reply_free(CachedReply *cached) {
    free(cached->key);
    free(cached->stamps);
    serve_reply_free(&cached->reply);
    *cached = (CachedReply){0};
}

void serve_site_close(ServeSite *site) {
    if (!site) return;
    for (size_t i = 0; i < site->summary_count; i++)
        run_summary_free(&site->summaries[i].summary);
    for (int i = 0; i < CACHE_ENTRIES; i++)
        cached_reply_free(&site->replies[i]);
    pthread_mutex_destroy(&site->summaries_lock);
    pthread_mutex_destroy(&site->replies_lock);
    free(site->summaries);
    free(site->folder);
    free(site->whole);
    free(site);
}

const char *serve_site_folder(const ServeSite *site) {
    return site->folder;
}

void serve_site_prepare(const ServeSite *site, ReportRun *run) {
    if (site->prepare) site->prepare(run, site->context);
}

// ---- which runs there are -------------------------------------------------------------------------------------------

static bool is_inside(const ServeSite *site, const char *path) {
    char *whole = realpath(path, NULL);
    bool inside = whole && path_is_within(whole, site->whole);
    free(whole);
    return inside;
}

// All that is read of a run are ordinary files of the folder: no link out of it, and nothing that a reader would wait
// for.
static bool is_served(const ServeSite *site, const char *path) {
    static const char *const read[] = {"config.toml", "metrics.jsonl",       "alarms.jsonl", "samples.jsonl",
                                       "plan.json",   "environment.json",    "state.json",   "log.txt",
                                       ".lock",       "profile/summary.json"};
    if (!file_is_directory(path) || !run_directory_is(path) || !is_inside(site, path)) return false;
    bool served = true;
    for (size_t i = 0; i < sizeof read / sizeof *read && served; i++) {
        struct stat found;
        char *file = path_join(path, read[i]);
        if (lstat(file, &found) == 0)
            served = is_inside(site, file) && stat(file, &found) == 0 && S_ISREG(found.st_mode);
        free(file);
    }
    return served;
}

static char *run_path(const ServeSite *site, const char *name) {
    return site->single ? text_copy(site->whole) : path_join(site->whole, name);
}

Status serve_site_names(ServeSite *site, char ***names, size_t *count) {
    *names = NULL;
    *count = 0;
    if (site->single) {
        *names = xmalloc(sizeof **names);
        **names = text_copy(path_name(site->whole));
        *count = 1;
    } else {
        Status status = dir_list(names, count, site->whole);
        if (status) {
            status_free(status);
            return status_runtime("the folder %s can no longer be read", site->folder);
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        char *path = run_path(site, (*names)[i]);
        size_t length = strlen((*names)[i]);
        if (utf8_first_malformed((*names)[i], length) == length && is_served(site, path))
            (*names)[kept++] = (*names)[i];
        else
            free((*names)[i]);
        free(path);
    }
    *count = kept;
    return NULL;
}

char *serve_site_find(ServeSite *site, const char *name) {
    char **names = NULL, *found = NULL;
    size_t count = 0;
    Status status = NULL;
    if (site->single) {
        if (strcmp(name, path_name(site->whole)) == 0) found = text_copy(site->whole);
    } else {
        status = dir_list(&names, &count, site->whole);
        for (size_t i = 0; i < count && !found; i++)
            if (strcmp(name, names[i]) == 0) found = run_path(site, names[i]);
        if (!status) names_free(names, count);
    }
    status_free(status);
    if (found && is_served(site, found)) return found;
    free(found);
    return NULL;
}

// ---- what was read of them ------------------------------------------------------------------------------------------

static RunStamp run_stamp(const char *path) {
    static const char *const files[] = {"metrics.jsonl", "alarms.jsonl", "state.json", "samples.jsonl"};
    RunStamp stamp = {0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct stat found;
        char *file = path_join(path, files[i]);
        if (stat(file, &found) == 0) {
            stamp.size[i] = found.st_size;
            stamp.time[i] = found.st_mtim.tv_sec * 1000000000LL + found.st_mtim.tv_nsec;
        }
        free(file);
    }
    stamp.locked = run_is_locked(path);
    return stamp;
}

static bool stamp_same(const RunStamp *a, const RunStamp *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static double due_after(double begun) {
    double now = clock_seconds();
    return now + fmax(1, 20 * (now - begun));
}

// Under summaries_lock. False: it is gone.
static bool summary_refresh(CachedSummary *cached, const char *path) {
    RunStamp stamp = run_stamp(path);
    double now = clock_seconds();
    if (cached->summary.name && (stamp_same(&stamp, &cached->stamp) || now < cached->due)) return true;
    RunSummary fresh;
    Status status = run_summary_read(&fresh, path);
    if (status) {
        status_free(status);
        return false;
    }
    free(fresh.points); // a list needs none
    fresh.points = NULL;
    fresh.point_count = 0;
    run_summary_free(&cached->summary);
    *cached = (CachedSummary){fresh, stamp, due_after(now), cached->listed};
    return true;
}

static CachedSummary *summary_of(ServeSite *site, const char *name) {
    for (size_t i = 0; i < site->summary_count; i++)
        if (site->summaries[i].summary.name && strcmp(site->summaries[i].summary.name, name) == 0)
            return &site->summaries[i];
    site->summaries = xrealloc(site->summaries, (site->summary_count + 1) * sizeof *site->summaries);
    site->summaries[site->summary_count] = (CachedSummary){0};
    return &site->summaries[site->summary_count++];
}

static int newest_first(const void *a, const void *b) {
    double x = ((const CachedSummary *)a)->summary.changed, y = ((const CachedSummary *)b)->summary.changed;
    return (x < y) - (x > y);
}

static void drop_unlisted(ServeSite *site) {
    size_t kept = 0;
    for (size_t i = 0; i < site->summary_count; i++) {
        if (site->summaries[i].listed)
            site->summaries[kept++] = site->summaries[i];
        else
            run_summary_free(&site->summaries[i].summary);
    }
    site->summary_count = kept;
}

Status serve_site_summaries(ServeSite *site, void (*take)(const RunSummary *summary, void *context), void *context) {
    char **names;
    size_t count;
    TRY(serve_site_names(site, &names, &count));
    pthread_mutex_lock(&site->summaries_lock);
    for (size_t i = 0; i < site->summary_count; i++)
        site->summaries[i].listed = false;
    for (size_t i = 0; i < count; i++) {
        char *path = run_path(site, names[i]);
        CachedSummary *cached = summary_of(site, names[i]);
        cached->listed = summary_refresh(cached, path);
        free(path);
    }
    drop_unlisted(site);
    if (site->summary_count) qsort(site->summaries, site->summary_count, sizeof *site->summaries, newest_first);
    for (size_t i = 0; i < site->summary_count; i++)
        take(&site->summaries[i].summary, context);
    pthread_mutex_unlock(&site->summaries_lock);
    names_free(names, count);
    return NULL;
}

// ---- what was answered ----------------------------------------------------------------------------------------------

static bool reply_holds(const CachedReply *cached, const RunStamp *stamps, int count, double now) {
    if (cached->count != count) return false;
    if (now < cached->due) return true;
    for (int i = 0; i < count; i++)
        if (!stamp_same(&cached->stamps[i], &stamps[i])) return false;
    return true;
}

static CachedReply *reply_slot(ServeSite *site, const char *key) {
    CachedReply *oldest = &site->replies[0];
    for (int i = 0; i < CACHE_ENTRIES; i++) {
        CachedReply *cached = &site->replies[i];
        if (cached->key && strcmp(cached->key, key) == 0) return cached;
        if (cached->used < oldest->used) oldest = cached;
    }
    cached_reply_free(oldest);
    oldest->key = text_copy(key);
    return oldest;
}

Status serve_site_cached(const ServeRequest *request, const char *key, char *const *paths, int count, ServeMake make,
                         ServeReply *reply) {
    ServeSite *site = request->site;
    Status status = NULL;
    ServeReply made = {0};
    RunStamp *stamps = xmalloc((size_t)count * sizeof *stamps);
    pthread_mutex_lock(&site->replies_lock);
    CachedReply *cached = reply_slot(site, key);
    double now = clock_seconds();
    for (int i = 0; i < count; i++)
        stamps[i] = run_stamp(paths[i]);
    if (!cached->stamps || !reply_holds(cached, stamps, count, now)) {
        status = make(request, paths, count, &made);
        if (status) {
            serve_reply_free(&made);
        } else {
            serve_reply_free(&cached->reply);
            free(cached->stamps);
            *cached = (CachedReply){cached->key, stamps, count, due_after(now), 0, made};
            stamps = NULL;
        }
    }
    cached->used = now;
    if (!status) {
        *reply = cached->reply;
        reply->body = (TextBuffer){0};
        text_buffer_add(&reply->body, cached->reply.body.data, cached->reply.body.length);
    }
    pthread_mutex_unlock(&site->replies_lock);
    free(stamps);
    return status;
}
