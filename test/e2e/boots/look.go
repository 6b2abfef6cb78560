package boots

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/netip"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// view is what of the API's answer about a machine matters here. It is written anew from the API's description: this
// module asks the pod as any client does.
type view struct {
	ID    string `json:"id"`
	Boots []struct {
		State string `json:"state"`
		At    string `json:"at"`
		Next  string `json:"next"`
		Cause *struct {
			Name    string `json:"name"`
			Text    string `json:"text"`
			Remedy  string `json:"remedy"`
			Certain bool   `json:"certain"`
		} `json:"cause"`
	} `json:"boots"`
}

// verdict is what the pod says of a machine.
type verdict struct {
	name    string // of the cause; where there is none, the state and step
	text    string
	trouble string // a way of looking that says something else, or does not work
}

// look asks for a machine by the API and, where that names a cause, by the page and the command too.
func (s *site) look(ctx context.Context, mac string) verdict {
	body, err := s.get(ctx, "/api/v1/boots/"+mac)
	if err != nil {
		return verdict{name: "nothing", trouble: "API: " + err.Error()}
	}
	var v view
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		return verdict{name: "nothing", trouble: "API: " + err.Error()}
	}
	if len(v.Boots) == 0 {
		return verdict{name: "no boot", trouble: "API: the machine has no boot"}
	}
	boot := v.Boots[0]
	if boot.Cause == nil {
		said := strings.TrimSpace(boot.State + " at " + boot.At)
		return verdict{name: said, trouble: "API: no cause: " + said}
	}
	said := verdict{name: boot.Cause.Name, text: boot.Cause.Text}
	for _, way := range []struct {
		name string
		ask  func() (string, error)
	}{
		{"page", func() (string, error) { return s.get(ctx, "/boots/"+mac) }},
		{"command", func() (string, error) { return s.Exec(ctx, lab.StackBoots, "show", mac) }},
	} {
		shown, err := way.ask()
		if err != nil {
			said.trouble = fmt.Sprintf("%s: %v", way.name, err)
			return said
		}
		shown = oneLine(html.UnescapeString(shown))
		for _, part := range []string{boot.Cause.Text, boot.Cause.Remedy} {
			if !strings.Contains(shown, oneLine(part)) {
				said.trouble = fmt.Sprintf("%s: it does not say %q: %.2000s", way.name, part, shown)
				return said
			}
		}
	}
	return said
}

// oneLine leaves out how a text is broken into lines.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// get asks the admin port of stack-boots, as through "kubectl port-forward".
func (s *site) get(ctx context.Context, path string) (string, error) {
	url := "http://" + netip.AddrPortFrom(lab.PodIP, lab.BootsAdminPort).String() + path
	return s.Page(ctx, lab.RolePod, url)
}
