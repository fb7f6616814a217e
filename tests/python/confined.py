"""Runs a command with less than usual: without io_uring, without huge pages, with little locked memory, as a user who is not root.

    confined.py [--no-uring ERRNO] [--no-huge-pages] [--memlock BYTES] [--uid UID] -- COMMAND...
"""

import argparse
import ctypes
import os
import platform
import resource
import struct
import sys

PR_SET_THP_DISABLE = 41
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
# The same numbers on every architecture.
IO_URING_CALLS = (425, 426, 427)


def prctl(*arguments):
    if ctypes.CDLL(None, use_errno=True).prctl(*arguments) != 0:
        sys.exit(f"prctl{arguments}: {os.strerror(ctypes.get_errno())}")


def forbid_io_uring(errno):
    """As containers' default filters do: the calls fail with this error."""
    load, equal, ret = 0x20, 0x15, 0x06
    calls = len(IO_URING_CALLS)
    code = [(load, 0, 0, 0)]
    code += [(equal, calls - index, 0, call) for index, call in enumerate(IO_URING_CALLS)]
    code += [(ret, 0, 0, RET_ALLOW), (ret, 0, 0, RET_ERRNO | errno)]
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code), ctypes.addressof(instructions))
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-uring", type=int, metavar="ERRNO")
    parser.add_argument("--no-huge-pages", action="store_true")
    parser.add_argument("--memlock", type=int, metavar="BYTES")
    parser.add_argument("--uid", type=int)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if platform.system() != "Linux":
        sys.exit("only Linux has seccomp")
    if arguments.memlock is not None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (arguments.memlock, arguments.memlock))
    if arguments.uid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(arguments.uid)
        os.setuid(arguments.uid)
    if arguments.no_huge_pages:
        # Inherited by what is executed. Those set aside (hugetlbfs) are not meant: a machine has none unless told to.
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    if arguments.no_uring is not None:
        forbid_io_uring(arguments.no_uring)
    os.execv(arguments.command[0], arguments.command)


main()
