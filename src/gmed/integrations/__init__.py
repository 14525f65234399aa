"""Adapters for scikit-learn, River, Avalanche and TensorBoard."""
