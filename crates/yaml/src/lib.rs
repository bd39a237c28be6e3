//! YAML that users write: values with their places, did-you-mean, located problems.
