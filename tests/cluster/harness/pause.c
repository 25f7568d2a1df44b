/* The process that holds the namespaces of a pod. It reaps orphans if the pod shares its PID namespace, and ends on SIGTERM. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int number) {
    (void)number;
    while (waitpid(-1, 0, WNOHANG) > 0);
}

static void leave(int number) {
    (void)number;
    _exit(0);
}

int main(void) {
    signal(SIGCHLD, reap);
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    for (;;) pause();
}
