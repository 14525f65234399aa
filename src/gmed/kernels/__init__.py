"""Optimized computations; the modules that use them contain the plain ones."""

import gmed.models  # noqa: F401 (models and kernels import each other; this completes models first)
