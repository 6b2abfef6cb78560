// Package redirect says which redirects the programs' HTTP clients follow.
package redirect

import (
	"errors"
	"fmt"
	"net/http"
)

// most is how many redirects are followed.
const most = 4

// ErrRefused is a redirect that is not followed, which another attempt would not change.
var ErrRefused = errors.New("redirect refused")

// None is a CheckRedirect that follows none: the client gets the redirect itself as the answer.
func None(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Secure is a CheckRedirect that follows four redirects at most, and none to http once there was https.
func Secure(to *http.Request, via []*http.Request) error {
	if len(via) > most {
		return fmt.Errorf("%w: more than %d in a row", ErrRefused, most)
	}
	for _, from := range via {
		if from.URL.Scheme == "https" && to.URL.Scheme != "https" {
			return fmt.Errorf("%w: from https to %s", ErrRefused, to.URL.Scheme)
		}
	}
	return nil
}
