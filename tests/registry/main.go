// A registry with the referrers API: registry ADDRESS FOLDER.
package main

import (
	"log"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	blobs := registry.NewDiskBlobHandler(os.Args[2])
	handler := registry.New(registry.WithReferrersSupport(true), registry.WithBlobHandler(blobs))
	log.Fatal(http.ListenAndServe(os.Args[1], handler))
}
