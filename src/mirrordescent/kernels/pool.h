/* Threads of the library.

   A kernel with an argument `threads` divides its work by one of two functions. Both return 1 if any part of the work
   returned 1, which means that memory could not be allocated, and 0 otherwise. The calling thread takes part in the work.

   The threads are started when they are first needed, and then wait for work. If they are busy with the work of another
   thread, or cannot be started, the calling thread does all of the work. A forked process starts threads of its own. */
#ifndef POOL
#define POOL
#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic int64_t counter;

/* A part of the work of a team: that of member `mine` of `all` members, which run at the same time. */
typedef int team_task(const void *work, int mine, int all);

/* Run a task on at most `threads` threads at the same time. */
int run_team(int threads, team_task *task, const void *work);

/* One of several independent units of work. */
typedef int unit_task(const void *work, int64_t unit);

/* Run a task for every unit in [0, units), distributed over the threads as they become free. */
int for_each(int64_t units, unit_task *task, const void *work, int threads);

/* Wait until a counter is at least `needed`. Another thread of the team must be about to increase it. */
void wait_for(counter *value, int64_t needed);
#endif
