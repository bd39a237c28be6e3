package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"outrider.example/plugins/internal/support"
)

// config is the configuration. config.schema.json says the same to those who have a schema's reader; check
// holds where nobody has looked at the schema.
type config struct {
	Delay *delay `json:"delay"`
	Abort *abort `json:"abort"`
}

// delay holds a request back.
type delay struct {
	Milliseconds uint32   `json:"milliseconds"`
	Percentage   *float64 `json:"percentage"`
}

// abort answers a request instead of the upstream.
type abort struct {
	Status     uint32            `json:"status"`
	Percentage *float64          `json:"percentage"`
	Body       string            `json:"body"`
	Headers    map[string]string `json:"headers"`

	// headers are those of the answer, ready to be sent.
	headers [][2]string
}

// check says what is wrong, and prepares what requests need.
func (c *config) check() error {
	if c.Delay == nil && c.Abort == nil {
		return errors.New("nothing to inject: `delay` or `abort` must be there")
	}
	if c.Delay != nil {
		if c.Delay.Milliseconds < 1 || c.Delay.Milliseconds > 3600000 {
			return fmt.Errorf("`delay.milliseconds` is %d; it can be 1 to 3600000", c.Delay.Milliseconds)
		}
		if err := checkPercentage("delay", c.Delay.Percentage); err != nil {
			return err
		}
	}
	if c.Abort != nil {
		return c.Abort.check()
	}
	return nil
}

func (a *abort) check() error {
	if a.Status < 200 || a.Status > 599 {
		return fmt.Errorf("`abort.status` is %d; it can be 200 to 599", a.Status)
	}
	if err := checkPercentage("abort", a.Percentage); err != nil {
		return err
	}
	headers := map[string]string{"content-type": "text/plain"}
	for name, value := range a.Headers {
		if err := support.CheckHeaderName("abort.headers", name); err != nil {
			return err
		}
		for i := 0; i < len(value); i++ {
			if support.IsControl(value[i]) && value[i] != '\t' {
				return fmt.Errorf("`abort.headers.%s`: %q cannot be a header's value", name, value)
			}
		}
		headers[strings.ToLower(name)] = value
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		a.headers = append(a.headers, [2]string{name, headers[name]})
	}
	return nil
}

func checkPercentage(fault string, percentage *float64) error {
	if percentage != nil && !(*percentage >= 0 && *percentage <= 100) {
		return fmt.Errorf("`%s.percentage` is %v; it can be 0 to 100", fault, *percentage)
	}
	return nil
}
