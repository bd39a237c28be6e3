// Authentication by password (RFC 7617) or by a shared token.
//
// Who sends no valid password gets 401 and may try again; who sends no valid token gets 403.
package main

import (
	"strings"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"outrider.example/plugins/internal/support"
)

func main() {}

func init() {
	proxywasm.SetPluginContext(func(uint32) types.PluginContext { return &basicAuth{} })
}

// basicAuth is one configuration of the plugin.
type basicAuth struct {
	types.DefaultPluginContext
	config config
}

func (plugin *basicAuth) OnPluginStart(int) types.OnPluginStartStatus {
	return support.Configure(&plugin.config, plugin.config.check)
}

func (plugin *basicAuth) NewHttpContext(uint32) types.HttpContext {
	return &request{config: &plugin.config}
}

// request is one request.
type request struct {
	types.DefaultHttpContext
	config *config
}

func (r *request) OnHttpRequestHeaders(int, bool) types.Action {
	passes := r.checkPassword
	if r.config.Token != nil {
		passes = r.checkToken
	}
	if !passes() {
		return types.ActionPause
	}
	return types.ActionContinue
}

// checkPassword says whether the request carries a known user's password; it has its answer when not.
func (r *request) checkPassword() bool {
	config := r.config
	if config.UserHeader != "" {
		if err := proxywasm.RemoveHttpRequestHeader(config.UserHeader); err != nil {
			return r.challenge("outrider.basic-auth.no_credentials")
		}
	}
	value, ok := single("authorization")
	if !ok {
		return r.challenge("outrider.basic-auth.no_credentials")
	}
	name, password, ok := credentials(value)
	if !ok {
		return r.challenge("outrider.basic-auth.malformed_credentials")
	}

	// A name that is not known is compared too, so that time does not tell which names are.
	expected, known := config.Users[name]
	if !known {
		expected = "\x00"
	}
	if !equal(password, expected) || !known {
		return r.challenge("outrider.basic-auth.wrong_credentials")
	}

	if config.UserHeader != "" {
		if err := proxywasm.ReplaceHttpRequestHeader(config.UserHeader, name); err != nil {
			proxywasm.LogErrorf("cannot set %s: %v", config.UserHeader, err)
		}
	}
	r.hide("authorization")
	return true
}

// checkToken says whether the request carries the token; it has its answer when not.
func (r *request) checkToken() bool {
	given, ok := single(r.config.Token.Header)
	if !ok || !equal(given, r.config.Token.Value) {
		support.Reply(403, [][2]string{{"content-type", "text/plain"}}, "forbidden\n",
			"outrider.basic-auth.wrong_token")
		return false
	}
	r.hide(r.config.Token.Header)
	return true
}

// hide keeps credentials from the upstream, where that is asked for.
func (r *request) hide(header string) {
	if !r.config.HideCredentials {
		return
	}
	if err := proxywasm.RemoveHttpRequestHeader(header); err != nil {
		proxywasm.LogErrorf("cannot remove %s: %v", header, err)
	}
}

// challenge asks for a password; details says why in access logs.
func (r *request) challenge(details string) bool {
	support.Reply(401, [][2]string{
		{"content-type", "text/plain"},
		{"www-authenticate", r.config.challenge},
	}, "unauthorized\n", details)
	return false
}

// single is the value of a request header. There is none when the header is missing or has several: two
// credentials in one request mean that somebody hopes the two of us read different ones.
func single(name string) (value string, ok bool) {
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return "", false
	}
	for _, header := range headers {
		if !strings.EqualFold(header[0], name) {
			continue
		}
		if ok {
			return "", false
		}
		value, ok = header[1], true
	}
	return value, ok
}
