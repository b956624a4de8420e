// What is served: the runs of a folder. A name that a client gives is looked up among those of the folder; what lies
// outside of it, or is reached by a link that leads out, is not there.
#pragma once

#include "base/json.h"
#include "base/status.h"
#include "serve/routes.h"
#include "watch/report_figures.h"
#include "watch/run_summary.h"

// Fills in what a report shows and the files of a run do not say (prices, what the planner would change).
typedef void (*ServePrepare)(ReportRun *run, void *context);

Status serve_site_open(ServeSite **site, const char *folder, ServePrepare prepare, void *context);
void serve_site_close(ServeSite *site); // NULL is fine

const char *serve_site_folder(const ServeSite *site);
void serve_site_prepare(const ServeSite *site, ReportRun *run);

#define SERVE_LOOKED_FOR RUNS_LOOKED_FOR "; a link that leads out of it is not followed"
// Names of the runs that are there now, sorted; free with names_free.
Status serve_site_names(ServeSite *site, char ***names, size_t *count);
char *serve_site_find(ServeSite *site, const char *name); // the run's directory, malloc'd; NULL: no such run

// Calls take for the figures of every run, as `hearth runs` has them. What has not changed is not read again, and what
// takes long to read only now and then.
Status serve_site_summaries(ServeSite *site, void (*take)(const RunSummary *summary, void *context), void *context);

// An answer that is costly to make, of runs that change: the last one of this key is given again while the runs at
// `paths` are as they were, or it is younger than its making would justify. One is made at a time: however many ask, a
// training beside it loses no more than one core, and of that a twentieth.
typedef Status (*ServeMake)(const ServeRequest *request, char *const *paths, int count, ServeReply *reply);
Status serve_site_cached(const ServeRequest *request, const char *key, char *const *paths, int count, ServeMake make,
                         ServeReply *reply);
