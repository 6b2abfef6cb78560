package film

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
)

// An event that is written and read is the same event.
func TestEventsComeBack(t *testing.T) {
	begin := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	for _, text := range []string{
		`{"t":1.25,"kind":"dhcp-request","outcome":"passed","took":0.5,"dhcp":"DISCOVER","mac":"52:54:00:5e:00:01",` +
			`"uuid":"00112233445566778899aabbccddeeff","xid":"0x1234","arch":0,"secs":4,"requested":"192.0.2.7","relay":"192.0.2.1",` +
			`"vendor":"PXEClient","user":"iPXE","host":"node-1","place":"eth1"}`,
		`{"t":2,"kind":"dhcp-reply","outcome":"dropped","dhcp":"REPLY","v6":true,"mac":"52:54:00:5e:00:01","lease":60,` +
			`"given":"2001:db8::7","server":"2001:db8::1","next":"2001:db8::2","reason":"unsolicited"}`,
		`{"t":3,"kind":"tftp","outcome":"torn","client":"192.0.2.7","endpoint":"10.244.0.11:69","route":69,"status":2,"bytes":1,` +
			`"expected":2,"offset":3,"resent":4,"block":1468,"window":6,"file":"a","agent":"tsize","message":"m","method":"write"}`,
		`{"t":4,"kind":"syslog","outcome":"passed","client":"192.0.2.7","priority":6,"agent":"ipxe","message":"ok"}`,
	} {
		_, lines, err := Read(strings.NewReader(`{"film":"f","truth":"t"}` + "\n" + text))
		if err != nil || len(lines) != 1 {
			t.Fatalf("%s: %d lines, %v", text, len(lines), err)
		}
		e, err := lines[0].BootEvent(begin)
		if err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(Of(&e, begin))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, string(again)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestWhatIsNoFilm(t *testing.T) {
	for _, text := range []string{
		``, `{"film":"f"}{"t":"x"}`, `{"film":"f"}{"t":1,"kynd":"http"}`, `{"film":"f"}{"t":1,"kind":"smoke"}`,
		`{"film":"f"}{"t":1,"kind":"http","outcome":"odd"}`, `{"film":"f"}{"t":1,"kind":"http","client":"x"}`,
		`{"film":"f"}{"t":1,"kind":"http","endpoint":"x:y"}`, `{"film":"f"}{"t":1,"kind":"http","mac":"x"}`,
		`{"film":"f"}{"t":1,"kind":"http","uuid":"x"}`, `{"film":"f"}{"t":1,"kind":"http","xid":"x"}`,
		`{"film":"f"}{"t":1,"kind":"dhcp-request","dhcp":"HELLO"}`,
		`{"film":"f"}{"t":1,"kind":"http","file":"` + strings.Repeat("x", boot.TextRoom+1) + `"}`,
	} {
		_, lines, err := Read(strings.NewReader(text))
		for i := range lines {
			if err == nil {
				_, err = lines[i].BootEvent(time.Time{})
			}
		}
		if err == nil {
			t.Errorf("%.80s: no error", text)
		}
	}
}
