package journey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Installed lists the MACs of machines that passed all their steps.
func (j *Journey) Installed() (macs []string) {
	for i, m := range j.Result.Machines {
		if m.OK {
			macs = append(macs, j.travellers[i].machine.MAC.String())
		}
	}
	return macs
}

// Booted waits until the pod says of each machine that it is booted, or installed as far as it can see. Without MACs
// there have to be so many, whichever. The error names what it says instead.
func Booted(ctx context.Context, l *lab.Lab, want int, macs ...string) error {
	// It learns last that a machine has hung up; by keepalive, in some two minutes, that one restarted without.
	const quiet = 3 * time.Minute
	err := progress.Until(ctx, progress.Patience{Quiet: quiet}, 250*time.Millisecond, func(ctx context.Context) error {
		states, err := states(ctx, l)
		if err != nil {
			return err
		}
		var others []string
		booted := 0
		for mac, state := range states {
			if state == "booted" || state == "installed" { // without a Workflow to ask
				booted++
			} else {
				others = append(others, mac+" "+state)
			}
		}
		for _, mac := range macs {
			if states[mac] != "booted" && states[mac] != "installed" {
				return fmt.Errorf("the page says that %s is %q", mac, states[mac])
			}
		}
		if len(macs) == 0 && booted != want {
			return fmt.Errorf("the page says that %d of %d machines are booted, and %s",
				booted, want, strings.Join(others, ", "))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to find installed machines booted: %w", err)
	}
	return nil
}

// states asks the admin port for the state of every machine, by its identity.
func states(ctx context.Context, l *lab.Lab) (map[string]string, error) {
	var list struct {
		Machines []struct {
			ID    string `json:"id"`
			Boots []struct {
				State string `json:"state"`
				Cause *struct {
					Name string `json:"name"`
				} `json:"cause"`
			} `json:"boots"`
		} `json:"machines"`
	}
	if err := ask(ctx, l, "/api/v1/boots", &list); err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, m := range list.Machines {
		if len(m.Boots) == 0 {
			return nil, errors.New("a machine has no boot: " + m.ID)
		}
		all[m.ID] = m.Boots[0].State
		if m.Boots[0].Cause != nil {
			all[m.ID] += ", " + m.Boots[0].Cause.Name
		}
	}
	return all, nil
}

// ask gets a JSON document of the boots' admin port, in the namespace of the pod.
func ask(ctx context.Context, l *lab.Lab, path string, into any) error {
	url := "http://" + netip.AddrPortFrom(lab.PodIP, lab.BootsAdminPort).String() + path
	body, err := l.Page(ctx, lab.RolePod, url)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		return fmt.Errorf("failed to read answer of %s: %w", url, err)
	}
	return nil
}
