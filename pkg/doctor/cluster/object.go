package cluster

import "slices"

// What of Kubernetes' objects matters here.
type meta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

type service struct {
	Spec struct {
		Type                  string `json:"type"`
		ExternalTrafficPolicy string `json:"externalTrafficPolicy"`
		LoadBalancerClass     string `json:"loadBalancerClass"`
		Ports                 []struct {
			Name     string `json:"name"`
			Port     int    `json:"port"`
			Protocol string `json:"protocol"`
		} `json:"ports"`
	} `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP string `json:"ip"`
			} `json:"ingress"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

type endpointSlice struct {
	Endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready *bool `json:"ready"` // nil: it is
		} `json:"conditions"`
	} `json:"endpoints"`
	Ports []endpointPort `json:"ports"`
}

type endpointPort struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Protocol string `json:"protocol"`
}

type pod struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		Containers []struct {
			Command []string `json:"command"`
			Args    []string `json:"args"`
			Env     []struct {
				Name  string `json:"name"`
				Value string `json:"value"`
			} `json:"env"`
		} `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase      string            `json:"phase"`
		PodIP      string            `json:"podIP"`
		Conditions []condition       `json:"conditions"`
		Init       []containerStatus `json:"initContainerStatuses"`
		Containers []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	State struct {
		Waiting    *stopped `json:"waiting"`
		Terminated *stopped `json:"terminated"`
	} `json:"state"`
	Last struct {
		Terminated *stopped `json:"terminated"`
	} `json:"lastState"`
}

type stopped struct {
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	ExitCode int    `json:"exitCode"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

type deployment struct {
	Metadata meta `json:"metadata"`
	Status   struct {
		Conditions []condition `json:"conditions"`
	} `json:"status"`
}

type networkPolicy struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		PodSelector selector `json:"podSelector"`
		PolicyTypes []string `json:"policyTypes"`
		Ingress     []struct {
			From []struct {
				IPBlock *struct {
					CIDR string `json:"cidr"`
				} `json:"ipBlock"`
			} `json:"from"`
			Ports []struct {
				Port     any    `json:"port"` // number or name; nil: all
				EndPort  int    `json:"endPort"`
				Protocol string `json:"protocol"`
			} `json:"ports"`
		} `json:"ingress"`
	} `json:"spec"`
}

// selector is a LabelSelector.
type selector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []struct {
		Key      string   `json:"key"`
		Operator string   `json:"operator"`
		Values   []string `json:"values"`
	} `json:"matchExpressions"`
}

// selects tells whether labels are those that are meant.
func (s *selector) selects(labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		value, ok := labels[e.Key]
		in := ok && slices.Contains(e.Values, value)
		if e.Operator == "In" && !in || e.Operator == "NotIn" && in || e.Operator == "Exists" && !ok ||
			e.Operator == "DoesNotExist" && ok {
			return false
		}
	}
	return true
}

type hardware struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		Interfaces []struct {
			DHCP *struct {
				MAC string `json:"mac"`
			} `json:"dhcp"`
			Netboot *struct {
				AllowPXE *bool `json:"allowPXE"`
			} `json:"netboot"`
		} `json:"interfaces"`
	} `json:"spec"`
}

type workflow struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		HardwareRef string `json:"hardwareRef"`
	} `json:"spec"`
	Status struct {
		State string `json:"state"`
	} `json:"status"`
}
