// Faults on purpose: a delay, an error, or a delay and then an error.
package main

import (
	"math/rand/v2"
	"time"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"outrider.example/plugins/internal/support"
)

// tickMilliseconds is how often the plugin looks whose wait is over, while anybody waits. Requests go on
// late by up to this.
const tickMilliseconds = 5

func main() {}

func init() {
	proxywasm.SetPluginContext(func(uint32) types.PluginContext { return &faultInjection{} })
}

// faultInjection is one configuration of the plugin.
type faultInjection struct {
	types.DefaultPluginContext
	config  config
	waiting waiting
}

func (plugin *faultInjection) OnPluginStart(int) types.OnPluginStartStatus {
	return support.Configure(&plugin.config, plugin.config.check)
}

func (plugin *faultInjection) OnTick() {
	due := plugin.waiting.takeDue(time.Now())
	if plugin.waiting.empty() {
		plugin.tick(0)
	}
	for _, wait := range due {
		// A tick belongs to no stream; what follows is to happen to this one.
		if err := proxywasm.SetEffectiveContext(wait.stream); err != nil {
			continue
		}
		if wait.aborted {
			plugin.config.Abort.send()
		} else if err := proxywasm.ResumeHttpRequest(); err != nil {
			proxywasm.LogErrorf("a request cannot go on: %v", err)
		}
	}
}

func (plugin *faultInjection) NewHttpContext(id uint32) types.HttpContext {
	return &request{id: id, plugin: plugin}
}

func (plugin *faultInjection) tick(milliseconds uint32) {
	if err := proxywasm.SetTickPeriodMilliSeconds(milliseconds); err != nil {
		proxywasm.LogErrorf("no ticks of %d ms: %v", milliseconds, err)
	}
}

// request is one request.
type request struct {
	types.DefaultHttpContext
	id     uint32
	plugin *faultInjection
}

func (r *request) OnHttpRequestHeaders(int, bool) types.Action {
	delay, abort := r.plugin.config.Delay, r.plugin.config.Abort
	aborted := abort != nil && struck(abort.Percentage)

	if delay != nil && struck(delay.Percentage) {
		if r.plugin.waiting.empty() {
			r.plugin.tick(tickMilliseconds)
		}
		end := time.Now().Add(time.Duration(delay.Milliseconds) * time.Millisecond)
		r.plugin.waiting.add(r.id, end, aborted)
		return types.ActionPause
	}
	if aborted {
		abort.send()
		return types.ActionPause
	}
	return types.ActionContinue
}

// OnHttpStreamDone: a client may go while its request waits.
func (r *request) OnHttpStreamDone() {
	r.plugin.waiting.remove(r.id)
}

// send answers the current request.
func (a *abort) send() {
	support.Reply(a.Status, a.headers, a.Body, "outrider.fault-injection.abort")
}

// struck says whether this request is one of percentage in a hundred. The dice is below 1, so 0 means never
// and 100 means always; nil stands for 100.
func struck(percentage *float64) bool {
	return percentage == nil || rand.Float64()*100 < *percentage
}
