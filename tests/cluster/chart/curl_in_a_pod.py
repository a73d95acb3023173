#!/usr/bin/python3
"""What curl does with the documents' lines, for an image of a test that has none: an error ends it with a traceback."""

import argparse
from urllib.request import Request, urlopen

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("-X", "--request")
parser.add_argument("-H", "--header", action="append", default=[])
parser.add_argument("-d", "--data")
asked = parser.parse_args()
url = asked.url if "://" in asked.url else f"http://{asked.url}"
headers = dict(each.split(": ", 1) for each in asked.header)
body = None if asked.data is None else asked.data.encode()
request = Request(url, body, headers, method=asked.request)  # noqa: S310 - http, in a cluster of a test
print(urlopen(request).read().decode(), end="")  # noqa: S310
