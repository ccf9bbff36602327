"""The built-in transforms. Each imports `connector` as any third-party plugin does."""
