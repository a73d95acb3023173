"""docs/performance.md says what the results say: a figure beyond its bound is not met, one that is missing is open."""

import json
from pathlib import Path

import performance
import pytest
