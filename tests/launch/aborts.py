"""A tool whose process ends by itself."""

import os

os.abort()
