// Coraza's web application firewall with the OWASP core rule set, as a Proxy-Wasm plugin.
//
// It is a guest for tests: large (30 MB), with a runtime of its own, and heavy on computing. The configuration's
// `directives` are ModSecurity's; without them the core rule set is on, as it is recommended.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/corazawaf/coraza-coreruleset/v4"
	"github.com/corazawaf/coraza/v3"
	"github.com/corazawaf/coraza/v3/types"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	proxy "github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"
)

const coreRuleSet = `
Include @coraza.conf-recommended
Include @crs-setup.conf.example
SecRuleEngine On
Include @owasp_crs/*.conf
`

func main() {}

func init() {
	proxywasm.SetPluginContext(func(uint32) proxy.PluginContext { return &firewall{} })
}

// firewall is one configuration.
type firewall struct {
	proxy.DefaultPluginContext
	waf coraza.WAF
}

func (f *firewall) OnPluginStart(int) proxy.OnPluginStartStatus {
	if err := f.configure(); err != nil {
		proxywasm.LogErrorf("configuration: %v", err)
		return proxy.OnPluginStartStatusFailed
	}
	return proxy.OnPluginStartStatusOK
}

func (f *firewall) configure() error {
	configuration := struct {
		Directives string `json:"directives"`
	}{coreRuleSet}
	text, err := proxywasm.GetPluginConfiguration()
	if err != nil && !errors.Is(err, proxy.ErrorStatusNotFound) {
		return err
	}
	if len(text) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&configuration); err != nil {
			return err
		}
	}
	f.waf, err = coraza.NewWAF(coraza.NewWAFConfig().
		WithRootFS(coreruleset.FS).
		WithErrorCallback(func(rule types.MatchedRule) { proxywasm.LogWarn(rule.ErrorLog()) }).
		WithDirectives(configuration.Directives))
	return err
}

func (f *firewall) NewHttpContext(uint32) proxy.HttpContext {
	return &stream{transaction: f.waf.NewTransaction()}
}

// stream is one request with its response.
type stream struct {
	proxy.DefaultHttpContext
	transaction types.Transaction
	// protocol is that of the request, for example HTTP/1.1.
	protocol string
	// answered says that the client has its answer from here; nothing is looked at any more.
	answered bool
	// requestRead and responseRead are how much of a body has been looked at.
	requestRead, responseRead int
}

func (s *stream) OnHttpRequestHeaders(_ int, end bool) proxy.Action {
	headers, err := proxywasm.GetHttpRequestHeaders()
	if err != nil {
		return s.broken(err)
	}
	client, clientPort := address("source", "address")
	server, serverPort := address("destination", "address")
	s.transaction.ProcessConnection(client, clientPort, server, serverPort)

	s.protocol = "HTTP/1.1"
	if protocol, err := proxywasm.GetProperty([]string{"request", "protocol"}); err == nil {
		s.protocol = string(protocol)
	}
	var method, path string
	for _, header := range headers {
		switch header[0] {
		case ":method":
			method = header[1]
		case ":path":
			path = header[1]
		case ":authority":
			s.transaction.AddRequestHeader("host", header[1])
			s.transaction.SetServerName(header[1])
		default:
			if !strings.HasPrefix(header[0], ":") {
				s.transaction.AddRequestHeader(header[0], header[1])
			}
		}
	}
	s.transaction.ProcessURI(path, method, s.protocol)
	if interruption := s.transaction.ProcessRequestHeaders(); interruption != nil {
		return s.refuse(interruption)
	}
	if end {
		return s.requestComplete()
	}
	return proxy.ActionContinue
}

func (s *stream) OnHttpRequestBody(size int, end bool) proxy.Action {
	if s.answered {
		return proxy.ActionPause
	}
	if s.transaction.IsRequestBodyAccessible() && size > s.requestRead {
		body, err := proxywasm.GetHttpRequestBody(s.requestRead, size-s.requestRead)
		if err != nil {
			return s.broken(err)
		}
		s.requestRead += len(body)
		interruption, _, err := s.transaction.WriteRequestBody(body)
		if err != nil {
			return s.broken(err)
		}
		if interruption != nil {
			return s.refuse(interruption)
		}
	}
	if end {
		return s.requestComplete()
	}
	// The whole body waits here, so what comes next is behind what was read.
	return proxy.ActionPause
}

func (s *stream) OnHttpRequestTrailers(int) proxy.Action {
	if s.answered {
		return proxy.ActionPause
	}
	return s.requestComplete()
}

// requestComplete has the rules look at all of the request.
func (s *stream) requestComplete() proxy.Action {
	interruption, err := s.transaction.ProcessRequestBody()
	if err != nil {
		return s.broken(err)
	}
	if interruption != nil {
		return s.refuse(interruption)
	}
	return proxy.ActionContinue
}

func (s *stream) OnHttpResponseHeaders(_ int, end bool) proxy.Action {
	if s.answered {
		return proxy.ActionContinue
	}
	headers, err := proxywasm.GetHttpResponseHeaders()
	if err != nil {
		return s.broken(err)
	}
	status := 0
	for _, header := range headers {
		if header[0] == ":status" {
			status, _ = strconv.Atoi(header[1])
		} else {
			s.transaction.AddResponseHeader(header[0], header[1])
		}
	}
	if interruption := s.transaction.ProcessResponseHeaders(status, s.protocol); interruption != nil {
		return s.refuse(interruption)
	}
	return proxy.ActionContinue
}

func (s *stream) OnHttpResponseBody(size int, end bool) proxy.Action {
	if s.answered || !s.transaction.IsResponseBodyAccessible() || !s.transaction.IsResponseBodyProcessable() {
		return proxy.ActionContinue
	}
	if size > s.responseRead {
		body, err := proxywasm.GetHttpResponseBody(s.responseRead, size-s.responseRead)
		if err != nil {
			proxywasm.LogErrorf("a response's body cannot be read: %v", err)
			return proxy.ActionContinue
		}
		s.responseRead += len(body)
		if interruption, _, err := s.transaction.WriteResponseBody(body); err != nil || interruption != nil {
			return s.blank(size)
		}
	}
	if !end {
		return proxy.ActionPause
	}
	if interruption, err := s.transaction.ProcessResponseBody(); err != nil || interruption != nil {
		return s.blank(size)
	}
	return proxy.ActionContinue
}

func (s *stream) OnHttpStreamDone() {
	s.transaction.ProcessLogging()
	if err := s.transaction.Close(); err != nil {
		proxywasm.LogErrorf("a transaction does not close: %v", err)
	}
}

// refuse answers the client as the rules say.
func (s *stream) refuse(interruption *types.Interruption) proxy.Action {
	s.answered = true
	status := interruption.Status
	if status == 0 {
		status = 403
	}
	if err := proxywasm.SendHttpResponse(uint32(status), nil, nil, -1); err != nil {
		proxywasm.LogErrorf("rule %d refuses, and there is nothing to refuse: %v", interruption.RuleID, err)
	}
	return proxy.ActionPause
}

// broken refuses what cannot be looked at.
func (s *stream) broken(err error) proxy.Action {
	proxywasm.LogErrorf("a message cannot be looked at: %v", err)
	return s.refuse(&types.Interruption{Status: 500})
}

// blank hides a response's body whose headers are on their way; their content-length stays right.
func (s *stream) blank(size int) proxy.Action {
	s.answered = true
	if err := proxywasm.ReplaceHttpResponseBody(bytes.Repeat([]byte{0}, size)); err != nil {
		proxywasm.LogErrorf("a response's body cannot be replaced: %v", err)
	}
	return proxy.ActionContinue
}

// address is the IP address and the port that a property has; empty where it has none.
func address(path ...string) (string, int) {
	value, err := proxywasm.GetProperty(path)
	if err != nil {
		return "", 0
	}
	host, port, err := net.SplitHostPort(string(value))
	if err != nil {
		return string(value), 0
	}
	number, _ := strconv.Atoi(port)
	return host, number
}
