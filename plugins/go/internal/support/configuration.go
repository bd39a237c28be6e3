// Package support has what the plugins here need beside the Proxy-Wasm SDK: a configuration that says what
// is wrong with it, and replies with a response-code detail.
//
// It is no second SDK: what the SDK does, plugins take from the SDK.
package support

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

// Configure reads a plugin's configuration, which is JSON, into target, and has it checked. What is wrong
// is logged in one line, for whoever wrote the configuration, and the configuration refused.
func Configure(target any, check func() error) types.OnPluginStartStatus {
	if err := read(target); err != nil {
		proxywasm.LogErrorf("configuration: %v", err)
		return types.OnPluginStartStatusFailed
	}
	if err := check(); err != nil {
		proxywasm.LogError(err.Error())
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

func read(target any) error {
	text, err := proxywasm.GetPluginConfiguration()
	if err != nil && !errors.Is(err, types.ErrorStatusNotFound) {
		return err
	}
	if len(text) == 0 {
		text = []byte("{}")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(target); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something after its end")
	}
	return nil
}

// CheckHeaderName says what is wrong with a header's name that stands under key.
func CheckHeaderName(key, name string) error {
	for i := 0; i < len(name); i++ {
		if !isTokenByte(name[i]) {
			return fmt.Errorf("`%s`: %q cannot be a header's name", key, name)
		}
	}
	if name == "" {
		return fmt.Errorf("`%s`: a header's name cannot be empty", key)
	}
	return nil
}

// IsControl says whether a byte is a control character, which neither names nor realms may have.
func IsControl(c byte) bool {
	return c < 0x20 || c == 0x7f
}

// isTokenByte says whether RFC 9110 allows the byte in a header's name.
func isTokenByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return bytes.IndexByte([]byte("!#$%&'*+.^_`|~-"), c) >= 0
}
