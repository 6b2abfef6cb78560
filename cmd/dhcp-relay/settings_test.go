package main

import (
	"strings"
	"testing"

	"github.com/tinkerbell/stack/pkg/daemon"
)

// Every fault names the variable to change, and all are named at once: those of reading and those of meaning.
func TestSettingsNameEveryFault(t *testing.T) {
	for variable, value := range map[string]string{
		"SERVERS": "a:0", "MAX_HOPS": "99", "TOKEN_KEY": "short", "PENDING": "-1", "PENDING_EXPIRY": "soon",
		"RESOLVE_INTERVAL": "-1s", "UPSTREAM_ADDRESS": "127.0.0.1", "SOURCE_ADDRESS": "255.255.255.255",
		"LISTENERS": "a,a", "TRUSTED_LISTENERS": "b", "CIRCUIT_ID": "x", "AGENT_OPTIONS": "remote-id,remote-id",
		"DEAD_AFTER": "-3", "TRACE_PACKETS": "100000", "RELAY_ID": "00", "UNHEARD_OF": "1",
	} {
		t.Setenv(prefix+"_"+variable, value)
	}
	var s settings
	err := daemon.ParseEnv(prefix, &s)
	if err == nil {
		t.Fatal("got no error")
	}
	for _, variable := range []string{
		"SERVERS", "MAX_HOPS", "TOKEN_KEY", "PENDING", "PENDING_EXPIRY", "RESOLVE_INTERVAL", "UPSTREAM_ADDRESS",
		"SOURCE_ADDRESS", "LISTENERS", "TRUSTED_LISTENERS", "CIRCUIT_ID", "AGENT_OPTIONS", "DEAD_AFTER",
		"TRACE_PACKETS", "RELAY_ID", "UNHEARD_OF",
	} {
		named := 0
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, prefix+"_"+variable+":") || strings.HasPrefix(line, prefix+"_"+variable+"=") {
				named++
			}
		}
		if named != 1 {
			t.Errorf("%s is named %d times in:\n%v", variable, named, err)
		}
	}
}
