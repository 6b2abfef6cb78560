package boots

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// apiPort is where the stand-in of the Kubernetes API listens, at Tink Server's address.
const apiPort = 6443

// withKubernetes has stack-boots watch Hardware and Workflow objects: one of each for every machine, which wait. They
// do not change.
func withKubernetes(s *scene, o *lab.Options) error {
	account := filepath.Join(s.dir, "account")
	if err := os.MkdirAll(account, 0o755); err != nil {
		return err
	}
	certificate, key, err := selfSigned(lab.TinkIP)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	files := map[string]string{"token": "token", "namespace": lab.Namespace, "ca.crt": string(certificate)}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	o.Security = map[string]*lab.Security{lab.StackBoots: {UID: 65532, Mounts: map[string]string{
		"/var/run/secrets/kubernetes.io/serviceaccount": account,
	}}}
	o.Env[lab.StackBoots] = append(o.Env[lab.StackBoots], "STACK_BOOTS_KUBERNETES=true",
		"KUBERNETES_SERVICE_HOST="+lab.TinkIP.String(), "KUBERNETES_SERVICE_PORT="+strconv.Itoa(apiPort))
	s.api = func() error {
		listener, err := s.listen(lab.RoleTink, netip.AddrPortFrom(lab.TinkIP, apiPort))
		if err != nil {
			return err
		}
		server := &http.Server{
			Handler: objects(o.Machines), ReadHeaderTimeout: time.Minute,
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
		}
		s.closers = append(s.closers, server)
		go func() { _ = server.ServeTLS(listener, "", "") }() // until close
		return nil
	}
	return nil
}

// objects answers as the Kubernetes API does: lists of Hardware and Workflow objects, which never change, and takes
// Events.
func objects(machines []lab.Machine) http.Handler {
	type object = map[string]any
	made := time.Now().UTC().Format(time.RFC3339)
	list := func(kind string, spec func(lab.Machine) (spec, status object)) object {
		items := []object{}
		for _, m := range machines {
			spec, status := spec(m)
			items = append(items, object{
				"apiVersion": "tinkerbell.org/v1alpha1", "kind": kind, "spec": spec, "status": status,
				"metadata": object{
					"name": m.Name, "namespace": lab.Namespace, "uid": kind + m.Name, "resourceVersion": "1",
					"creationTimestamp": made,
				},
			})
		}
		return object{
			"apiVersion": "tinkerbell.org/v1alpha1", "kind": kind + "List", "items": items,
			"metadata": object{"resourceVersion": "1"},
		}
	}
	lists := map[string]object{
		"hardware": list("Hardware", func(m lab.Machine) (spec, status object) {
			return object{"interfaces": []object{{
				"dhcp": object{"mac": m.MAC.String(), "arch": "x86_64"}, "netboot": object{"allowPXE": !m.NoPXE},
			}}}, object{}
		}),
		"workflows": list("Workflow", func(m lab.Machine) (spec, status object) {
			return object{"hardwareRef": m.Name, "hardwareMap": object{"device_1": m.MAC.String()}},
				object{"state": "PENDING"}
		}),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		all, ok := lists[resource]
		query := r.URL.Query()
		switch {
		case !ok:
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(object{
				"apiVersion": "v1", "kind": "Event", "metadata": object{"name": "e", "namespace": lab.Namespace},
			})
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(object{
				"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422, "message": "no",
			})
		case query.Get("watch") != "":
			_ = errors.Join(http.NewResponseController(w).Flush()) // the client notices
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(all)
		}
	})
}
