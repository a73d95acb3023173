"""Queries Graphcore's library gcipuinfo for the health of the IPUs, in a separate process.

Run as a file by the ``python3`` of the Poplar SDK, which may be as old as 3.6: uses only the standard library and no
module of this project. Prints the library's answer. Exit code 3: the library is not installed.
"""

import importlib
import sys

NO_LIBRARY = 3


def main(arguments: "list[str]") -> int:
    try:
        library = importlib.import_module("gcipuinfo")
    except ImportError as error:
        sys.stderr.write("{}\n".format(error))  # noqa: UP032 - for Python 3.6
        return NO_LIBRARY
    mode = library.DiscoverAllPartitionIPUs if arguments == ["all"] else library.DiscoverActivePartitionIPUs
    sys.stdout.write("{}\n".format(library.gcipuinfo(mode).checkHealthOfDevices()))  # noqa: UP032
    return 0


if __name__ == "__main__":
    # this file's folder is first on the path, and contains modules with common names
    del sys.path[0]
    sys.exit(main(sys.argv[1:]))
