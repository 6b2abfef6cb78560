package page

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// serveAcknowledge notes that a person knows of a machine that failed. The caller is not known by name, so it is for
// the loopback interface alone: not everybody in the cluster may end the alert of a machine that is down.
func (s *Server) serveAcknowledge(w http.ResponseWriter, r *http.Request) {
	m, found := s.options.Journal.Machine(s.look.id(r.PathValue("id")))
	switch {
	case !isLocal(r):
		refuse(w, http.StatusForbidden, "only through the loopback interface: kubectl port-forward or exec")
		return
	case !found:
		refuse(w, http.StatusNotFound, unheard)
		return
	case Newest(&m).State != journal.StateFailed:
		refuse(w, http.StatusConflict, "it did not fail: it is "+string(Newest(&m).State))
		return
	}
	e := boot.Event{Kind: boot.Acknowledged, At: s.options.Now().UnixNano(), Client: boot.Bytes(m.Address)}
	if mac, err := net.ParseMAC(m.ID); err == nil {
		e.MAC = [6]byte(mac)
	}
	s.options.Event(&e)
	if strings.HasPrefix(r.URL.Path, "/boots/") {
		w.Header().Set("Location", "../"+url.PathEscape(m.ID))
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
