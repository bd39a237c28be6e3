package main

import (
	"errors"
	"fmt"
	"strings"

	"outrider.example/plugins/internal/support"
)

// config is the configuration. config.schema.json says the same to those who have a schema's reader; check
// holds where nobody has looked at the schema.
type config struct {
	// Users are passwords by name.
	Users           map[string]string `json:"users"`
	Realm           *string           `json:"realm"`
	UserHeader      string            `json:"user_header"`
	Token           *token            `json:"token"`
	HideCredentials bool              `json:"hide_credentials"`

	// challenge is the value of www-authenticate.
	challenge string
}

// token is a secret that all who may pass share.
type token struct {
	Header string `json:"header"`
	Value  string `json:"value"`
}

// check says what is wrong, and fills in what is not written.
func (c *config) check() error {
	switch {
	case (c.Users == nil) == (c.Token == nil):
		return errors.New("exactly one of `users` and `token` must be there")
	case c.Token == nil:
		return c.checkUsers()
	case c.Realm != nil:
		return errors.New("`realm` has no meaning with `token`; remove it, or use `users`")
	case c.UserHeader != "":
		return errors.New("`user_header` has no meaning with `token`; remove it, or use `users`")
	case c.Token.Value == "":
		return errors.New("`token.value` is empty")
	case c.Token.Header == "":
		c.Token.Header = "x-token"
	}
	return support.CheckHeaderName("token.header", c.Token.Header)
}

func (c *config) checkUsers() error {
	if len(c.Users) == 0 {
		return errors.New("`users` is empty; name at least one")
	}
	for name, password := range c.Users {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r == ':' || isControl(r) }) {
			return fmt.Errorf("users: %q cannot be a name; one has no colon and no control characters", name)
		}
		if password == "" {
			return fmt.Errorf("users.%s: the password is empty", name)
		}
	}
	if c.UserHeader != "" {
		if err := support.CheckHeaderName("user_header", c.UserHeader); err != nil {
			return err
		}
		if strings.EqualFold(c.UserHeader, "authorization") {
			return errors.New("`user_header` cannot be `authorization`; choose a header of its own, for example x-user")
		}
	}
	realm := "restricted"
	if c.Realm != nil {
		realm = *c.Realm
	}
	if strings.ContainsFunc(realm, isControl) {
		return errors.New("`realm` cannot contain control characters")
	}
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(realm)
	c.challenge = `Basic realm="` + quoted + `", charset="UTF-8"`
	return nil
}

func isControl(r rune) bool {
	return r < 0x80 && support.IsControl(byte(r))
}
