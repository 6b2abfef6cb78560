// Package jwt lets requests with a good token pass (RFC 7519, by the rules of RFC 8725), and forwards claims of the
// token to the backend.
//
// Keys come from a JWKS by URL or file. The settings and the kind of each key determine the algorithm. A token cannot
// choose one; "none" and HMAC are not implemented.
package jwt

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Config says which tokens are good.
type Config struct {
	Issuer string `json:"issuer" form:"." desc:"must be the iss"`
	// An Audience of "*" also takes tokens that were issued for other services.
	Audience   []string `json:"audience" form:"." desc:"must have one of the aud; * takes any"`
	JWKS       string   `json:"jwks,omitempty" desc:"URL or file of the keys; default by the issuer's discovery"`
	CA         string   `json:"ca,omitempty" form:"^(/.*)?$" desc:"file of certificates to trust when keys are fetched; default the system's"`
	Algorithms []string `json:"algorithms,omitempty" form:"^(RS|PS|ES)(256|384|512)$|^EdDSA$" desc:"accepted ones; default RS256, PS256, ES256, ES384, EdDSA"`
	// Claims by dots: "realm_access.roles"; an array, and the words of "scope", have each of their elements.
	Claims  map[string][]string `json:"claims,omitempty" desc:"claims that must be there, with one of the values if any; dots lead into objects"`
	Forward map[string]string   `json:"forward,omitempty" desc:"header: claim, for the backend; removed when sent from outside"`
}

const (
	// leeway is the difference of clocks that is tolerated.
	leeway = 30 * time.Second
	// refreshEvery is how often the keys are fetched again.
	refreshEvery = 5 * time.Minute
)

// algorithms are those that are implemented.
var algorithms = []string{
	"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}

// reserved are headers that a claim must not be forwarded in: other parts of the proxy, or the protocol, own them.
var reserved = []string{
	"Authorization", "Connection", "Content-Length", "Content-Type", "Cookie", "Expect", "Forwarded", "Grpc-Timeout",
	"Host", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Range", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip",
}

// headerName is a field name (RFC 9110, 5.1) without the underscore, which some backends take for a dash.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^`|~-]+$")

// Validate names every fault.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Issuer == "" {
		fault("issuer: missing")
	}
	if len(c.Audience) == 0 {
		fault(`audience: missing (["*"] takes any)`)
	}
	if slices.Contains(c.Audience, "") {
		fault("audience: one is empty")
	}
	switch {
	case c.JWKS == "":
		if err := checkURL(c.Issuer); c.Issuer != "" && err != nil {
			fault("jwks: missing, and the issuer is no URL to find it by: %w", err)
		}
	case !path.IsAbs(c.JWKS):
		if err := checkURL(c.JWKS); err != nil {
			fault("jwks: %w, nor an absolute path", err)
		}
	}
	if c.CA != "" && !path.IsAbs(c.CA) {
		fault("ca: %q is not an absolute path", c.CA)
	}
	for i, a := range c.Algorithms {
		if !slices.Contains(algorithms, a) {
			fault("algorithms[%d]: %q is not one of %s", i, a, strings.Join(algorithms, ", "))
		}
	}
	faults = append(faults, c.forwardFaults()...)
	for _, claim := range slices.Sorted(maps.Keys(c.Claims)) {
		if claim == "" {
			fault("claims: one has no name")
		}
	}
	return errors.Join(faults...)
}

// forwardFaults returns the faults of the headers in which claims are forwarded.
func (c *Config) forwardFaults() []error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, header := range slices.Sorted(maps.Keys(c.Forward)) {
		switch canonical := http.CanonicalHeaderKey(header); {
		case !headerName.MatchString(header):
			fault("forward: %q is no name of a header", header)
		case slices.Contains(reserved, canonical), strings.HasPrefix(canonical, "Grpc-"):
			fault("forward: %s is not for claims", canonical)
		case c.Forward[header] == "":
			fault("forward: %s has no claim", canonical)
		}
	}
	return faults
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is neither http:// nor https://", text)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if len(c.Algorithms) == 0 {
		c.Algorithms = []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}
	}
	return c
}
