// The Proxy-Wasm plugins in Go: one module, a folder for each plugin. `make plugins-go` builds them.
module outrider.example/plugins

go 1.24

require github.com/proxy-wasm/proxy-wasm-go-sdk v0.0.0-20260105142703-44c7d5847745
