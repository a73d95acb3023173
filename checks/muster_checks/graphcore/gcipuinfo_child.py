"""Asks Graphcore's library gcipuinfo for the health of the IPUs, in a process of its own.

Run as a file by the ``python3`` that the Poplar SDK belongs to, which may be as old as 3.6: nothing but the standard
library, and none of this project. Prints the library's answer. Exit code 3: the library is not there.
"""

import importlib
import sys

NO_LIBRARY = 3


def main(arguments: "list[str]") -> int:
    try:
        library = importlib.import_module("gcipuinfo")
    except ImportError as error:
        sys.stderr.write("{}\n".format(error))  # noqa: UP032 - as old as the rest
        return NO_LIBRARY
    mode = library.DiscoverAllPartitionIPUs if arguments == ["all"] else library.DiscoverActivePartitionIPUs
    sys.stdout.write("{}\n".format(library.gcipuinfo(mode).checkHealthOfDevices()))  # noqa: UP032
    return 0


if __name__ == "__main__":
    # its own folder comes first on the path, and has files of common names
    del sys.path[0]
    sys.exit(main(sys.argv[1:]))
