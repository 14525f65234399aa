"""What is fast because it is clever: the plain computation is in the modules that use it."""

import gmed.models  # noqa: F401 (models and kernels use each other; whoever comes here first finds models complete)
