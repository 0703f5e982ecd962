"""The Energy Transformer companion: mathematics, models, data and runs behind the chapters.

Import the module you need (``from etlib import energy``); importing the package itself
loads nothing, so that command-line tools start at once and accelerator settings can still
be made before JAX is.
"""

import warnings

# tqdm warns of it in every notebook without widgets, where its text bar does as well.
warnings.filterwarnings("ignore", message="IProgress not found")
