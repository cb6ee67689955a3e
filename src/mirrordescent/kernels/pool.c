/* A pool of threads: POSIX threads, or those of Windows. */
#include "pool.h"
#include <stdlib.h>
#ifdef _WIN32
#include <windows.h>
typedef SRWLOCK lock_type;
typedef CONDITION_VARIABLE signal_type;
#define UNLOCKED SRWLOCK_INIT
#define NO_SIGNAL CONDITION_VARIABLE_INIT
static void lock(lock_type *l) { AcquireSRWLockExclusive(l); }
static void unlock(lock_type *l) { ReleaseSRWLockExclusive(l); }
static void sleep_until(signal_type *s, lock_type *l) { SleepConditionVariableSRW(s, l, INFINITE, 0); }
static void wake_all(signal_type *s) { WakeAllConditionVariable(s); }
static void give_way(void) { SwitchToThread(); }
#else
#include <pthread.h>
#include <sched.h>
#include <signal.h>
typedef pthread_mutex_t lock_type;
typedef pthread_cond_t signal_type;
#define UNLOCKED PTHREAD_MUTEX_INITIALIZER
#define NO_SIGNAL PTHREAD_COND_INITIALIZER
static void lock(lock_type *l) { pthread_mutex_lock(l); }
static void unlock(lock_type *l) { pthread_mutex_unlock(l); }
static void sleep_until(signal_type *s, lock_type *l) { pthread_cond_wait(s, l); }
static void wake_all(signal_type *s) { pthread_cond_broadcast(s); }
static void give_way(void) { sched_yield(); }
#endif

#define MOST 256         /* maximal number of members of a team */
#define PATIENCE 2000    /* turns of waiting before a thread sleeps: a few microseconds, the time between two kernels */

typedef struct {
    atomic_int busy;                  /* whether a team is at work */
    int workers;                      /* threads that were started; they are members 1, 2, … of teams */
    team_task *task;
    const void *work;
    int all;
    atomic_uint tickets[MOST];        /* increased when the member is to work */
    atomic_int unfinished;            /* members that are still at work */
    atomic_int failed;
    lock_type lock;
    signal_type begin, end;
} pool_type;

static pool_type pool = {.lock = UNLOCKED, .begin = NO_SIGNAL, .end = NO_SIGNAL};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait for the next ticket of a member, first awake and then asleep. */
static void wait_for_ticket(int mine, unsigned last) {
    for (int turn = 0; turn < PATIENCE; turn++) {
        if (atomic_load_explicit(&pool.tickets[mine], memory_order_acquire) != last) return;
        pause_briefly();
    }
    lock(&pool.lock);
    while (atomic_load_explicit(&pool.tickets[mine], memory_order_acquire) == last) sleep_until(&pool.begin, &pool.lock);
    unlock(&pool.lock);
}

/* The life of a worker. */
static void serve(int mine) {
    for (unsigned last = 0;; last++) {
        wait_for_ticket(mine, last);
        if (pool.task(pool.work, mine, pool.all)) atomic_store(&pool.failed, 1);
        if (atomic_fetch_sub(&pool.unfinished, 1) == 1) {
            lock(&pool.lock);
            wake_all(&pool.end);
            unlock(&pool.lock);
        }
    }
}

#ifdef _WIN32
static DWORD WINAPI begin_serving(void *mine) {
    serve((int)(intptr_t)mine);
    return 0;
}

static int start_worker(int mine) {
    HANDLE thread = CreateThread(NULL, 0, begin_serving, (void *)(intptr_t)mine, 0, NULL);
    if (thread) CloseHandle(thread);
    return thread != NULL;
}

static void prepare_for_forks(void) {}
#else
static void *begin_serving(void *mine) {
    serve((int)(intptr_t)mine);
    return NULL;
}

/* Signals are for the threads of the program. */
static int start_worker(int mine) {
    sigset_t all_signals, before;
    pthread_t thread;
    sigfillset(&all_signals);
    if (pthread_sigmask(SIG_SETMASK, &all_signals, &before)) return 0;
    int started = !pthread_create(&thread, NULL, begin_serving, (void *)(intptr_t)mine);
    if (started) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* A forked process has no workers, and a lock that may have been taken. */
static void forget_workers(void) {
    static const pool_type empty = {.lock = UNLOCKED, .begin = NO_SIGNAL, .end = NO_SIGNAL};
    pool = empty;
}

static void prepare_for_forks(void) {
    static int prepared = 0;
    if (!prepared) prepared = !pthread_atfork(NULL, NULL, forget_workers);
}
#endif

/* Start workers for a team, and return the number of its members. */
static int hire(int threads) {
    if (threads > MOST) threads = MOST;
    if (pool.workers + 1 < threads) prepare_for_forks();
    while (pool.workers + 1 < threads) {
        atomic_store(&pool.tickets[pool.workers + 1], 0);
        if (!start_worker(pool.workers + 1)) break;
        pool.workers++;
    }
    return pool.workers + 1 < threads ? pool.workers + 1 : threads;
}

int run_team(int threads, team_task *task, const void *work) {
    if (threads <= 1 || atomic_exchange(&pool.busy, 1)) return task(work, 0, 1);
    int all = hire(threads), failed = 0;
    if (all > 1) {
        pool.task = task;
        pool.work = work;
        pool.all = all;
        atomic_store(&pool.failed, 0);
        atomic_store(&pool.unfinished, all - 1);
        lock(&pool.lock);
        for (int member = 1; member < all; member++)
            atomic_fetch_add_explicit(&pool.tickets[member], 1, memory_order_release);
        wake_all(&pool.begin);
        unlock(&pool.lock);
    }
    failed = task(work, 0, all);
    if (all > 1) {
        for (int turn = 0; turn < PATIENCE && atomic_load(&pool.unfinished); turn++) pause_briefly();
        lock(&pool.lock);
        while (atomic_load(&pool.unfinished)) sleep_until(&pool.end, &pool.lock);
        unlock(&pool.lock);
        failed |= atomic_load(&pool.failed);
    }
    atomic_store(&pool.busy, 0);
    return failed;
}

typedef struct {
    int64_t units;
    unit_task *task;
    const void *work;
    counter *next;
} unit_work;

static int take_units(const void *work, int mine, int all) {
    const unit_work *w = work;
    int failed = 0;
    (void)mine;
    (void)all;
    for (int64_t unit; (unit = atomic_fetch_add(w->next, 1)) < w->units;) failed |= w->task(w->work, unit);
    return failed;
}

int for_each(int64_t units, unit_task *task, const void *work, int threads) {
    counter next = 0;
    unit_work all = {units, task, work, &next};
    return run_team(units < threads ? (int)units : threads, take_units, &all);
}

void wait_for(counter *value, int64_t needed) {
    for (int64_t tries = 0; atomic_load_explicit(value, memory_order_acquire) < needed; tries++)
        if (tries > 1000) give_way();
}
