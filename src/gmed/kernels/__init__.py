"""Optimized computations; the modules that use them also contain plain versions."""

import gmed.models  # noqa: F401 (models and kernels import each other; this completes models first)
