//go:build tools

// Keeps crane, which is built from the same module, in go.sum.
package main

import _ "github.com/google/go-containerregistry/cmd/crane/cmd"
