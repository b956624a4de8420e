// Answers about runs. Each names its runs by `run=NAME`.
#pragma once

#include "serve/site.h"

enum { SERVE_RUNS_MOST = 16 }; // in one comparison or report

Status runs_answer_list(const ServeRequest *request, ServeReply *reply);    // as `hearth runs --json`
Status runs_answer_run(const ServeRequest *request, ServeReply *reply);     // all of a run's page but its curves
Status runs_answer_compare(const ServeRequest *request, ServeReply *reply); // of two or more, in the order given
Status runs_answer_report(const ServeRequest *request, ServeReply *reply);  // the page of `hearth report`
Status series_answer(const ServeRequest *request, ServeReply *reply);       // the curves of a run (series.c)
Status events_answer(const ServeRequest *request, ServeReply *reply);       // and how they go on (live.h)
Status prometheus_answer(const ServeRequest *request, ServeReply *reply);   // of runs that train (prometheus.c)

// What `make` makes of the run that a request names, or the last of it; what: tells answers apart.
Status runs_answer_one(const ServeRequest *request, const char *what, ServeMake make, ServeReply *reply);
