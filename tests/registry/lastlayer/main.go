// Prints the plugin.wasm of an image, found as Istio and Envoy Gateway find it: in the last layer.
package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func main() {
	reference, err := name.ParseReference(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	image, err := remote.Image(reference)
	if err != nil {
		log.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		log.Fatal(err)
	}
	packed, err := layers[len(layers)-1].Compressed()
	if err != nil {
		log.Fatal(err)
	}
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		log.Fatal(err)
	}
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if err != nil {
			log.Fatal("no plugin.wasm in the last layer: ", err)
		}
		if filepath.Base(header.Name) == "plugin.wasm" {
			if _, err := io.Copy(os.Stdout, archive); err != nil {
				log.Fatal(err)
			}
			return
		}
	}
}
