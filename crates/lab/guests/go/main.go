// The benchmark's guest in Go: the same counts, names and values as the native module (bench-native), written
// as a careful author writes a plugin with the SDK. Names are made once; what is read is added up and compared
// with what is expected, and a difference is told in a header.
package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

const (
	value = "value"
	// tell is the header in which what was not as expected is told, and in a telling configuration everything.
	tell = "x-bench"
	// unknown is a count of bytes that is not expected but told.
	unknown = -1
)

func main() {}

func init() {
	proxywasm.SetPluginContext(func(uint32) types.PluginContext { return &bench{} })
}

// work is what one configuration does.
type work struct {
	set, read, remove      []string
	bodyReads              int
	responses              bool
	headerBytes, bodyBytes int
	rewrite                bool
}

// secret is the word that is replaced, and hidden what replaces it.
var secret, hidden = []byte("secret"), []byte("******")

// parse reads "sets=20 reads=10 removals=20 body_reads=30 header_bytes=50 body_bytes=30720", as bench-native does.
func parse(text string) (*work, error) {
	w := &work{headerBytes: unknown, bodyBytes: unknown}
	for _, word := range strings.Fields(text) {
		key, digits, _ := strings.Cut(word, "=")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", word, err)
		}
		switch key {
		case "sets":
			w.set = names(number)
		case "reads":
			w.read = names(number)
		case "removals":
			w.remove = names(number)
		case "body_reads":
			w.bodyReads = number
		case "responses":
			w.responses = number > 0
		case "header_bytes":
			w.headerBytes = number
		case "body_bytes":
			w.bodyBytes = number
		case "rewrite":
			w.rewrite = number > 0
		default:
			return nil, fmt.Errorf("%q is unknown", key)
		}
	}
	return w, nil
}

// names are x-h-1, x-h-2 and so on.
func names(count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = "x-h-" + strconv.Itoa(i+1)
	}
	return names
}

// bench is one configuration.
type bench struct {
	types.DefaultPluginContext
	work *work
}

func (b *bench) OnPluginStart(int) types.OnPluginStartStatus {
	text, err := proxywasm.GetPluginConfiguration()
	if err == nil {
		b.work, err = parse(string(text))
	}
	if err != nil {
		proxywasm.LogErrorf("configuration: %v", err)
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

func (b *bench) NewHttpContext(uint32) types.HttpContext { return &request{work: b.work} }

// request is one request.
type request struct {
	types.DefaultHttpContext
	work *work
}

func (r *request) OnHttpRequestHeaders(_ int, end bool) types.Action {
	for _, name := range r.work.set {
		must(proxywasm.ReplaceHttpRequestHeader(name, value))
	}
	length := 0
	for _, name := range r.work.read {
		// One that is missing is an error; it shows in the sum.
		read, _ := proxywasm.GetHttpRequestHeader(name)
		length += len(read)
	}
	for _, name := range r.work.remove {
		must(proxywasm.RemoveHttpRequestHeader(name))
	}
	if length != r.work.headerBytes {
		must(proxywasm.AddHttpRequestHeader(tell, "headers "+strconv.Itoa(length)))
	}
	if (r.work.bodyReads > 0 || r.work.rewrite) && !end {
		return types.ActionPause
	}
	return types.ActionContinue
}

func (r *request) OnHttpRequestBody(size int, end bool) types.Action {
	if r.work.bodyReads == 0 && !r.work.rewrite {
		return types.ActionContinue
	}
	if !end {
		return types.ActionPause
	}
	if r.work.rewrite {
		body, err := proxywasm.GetHttpRequestBody(0, size)
		must(err)
		if place := bytes.Index(body, secret); place >= 0 {
			copy(body[place:], hidden)
			must(proxywasm.ReplaceHttpRequestBody(body))
		}
		return types.ActionContinue
	}
	length := 0
	for range r.work.bodyReads {
		body, err := proxywasm.GetHttpRequestBody(0, size)
		must(err)
		length += len(body)
	}
	if length != r.work.bodyBytes {
		must(proxywasm.AddHttpRequestHeader(tell, "body "+strconv.Itoa(length)))
	}
	return types.ActionContinue
}

func (r *request) OnHttpResponseHeaders(int, bool) types.Action {
	if r.work.responses {
		must(proxywasm.AddHttpResponseHeader(tell, "response"))
	}
	return types.ActionContinue
}

// must ends the VM where a host function failed: nothing that goes on then is worth counting.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
