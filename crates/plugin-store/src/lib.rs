//! Where plugins come from: folders and files, their manifests and digests.
