"""The same learners for scikit-learn, River, Avalanche and TensorBoard."""
