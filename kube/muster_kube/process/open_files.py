"""The limit of open files (RLIMIT_NOFILE): every connection, watch and file of a process counts."""

import resource

# fs.nr_open's default, which nothing needs more of. Some container runtimes set a hard limit of 2^30, and programs that
# the agent starts may close every possible descriptor before they begin
HIGHEST = 1 << 20


def raise_open_files_limit() -> int:
    """Raise the soft limit to the hard one, at most :data:`HIGHEST`; a soft limit of 1,024 is a shell's, for programs
    that use select(). Returns the soft limit that is in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HIGHEST if hard == resource.RLIM_INFINITY else min(hard, HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return HIGHEST if soft == resource.RLIM_INFINITY else soft
