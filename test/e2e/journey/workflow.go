package journey

import (
	"context"
	"fmt"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
)

// template is the workflow of every machine, with one action: its agent's runtime streams the image.
const template = `version: "0.1"
name: install
global_timeout: 600
tasks:
  - name: os-installation
    worker: "{{.device_1}}"
    actions:
      - name: stream-image
        image: image2disk
        timeout: 600
        environment:
          WORKFLOW: "{{.workflow}}"
          IMG_URL: %q
          IMG_SHA512: %q
          DEST_DISK: /dev/sda
`

// order gives the modern Tinkerbell a workflow for each machine.
func (j *Journey) order(ctx context.Context) error {
	err := j.Lab.Create(ctx, "templates", lab.Object("Template", "install", map[string]any{
		"data": fmt.Sprintf(template, j.fileURL(machine.ArtifactFile), j.opts.Media.ArtifactSHA512),
	}))
	if err != nil {
		return err
	}
	for _, t := range j.travellers {
		name := workflowOf(t.machine)
		err := j.Lab.Create(ctx, "workflows", lab.Object("Workflow", name, map[string]any{
			"templateRef": "install", "hardwareRef": t.machine.Name,
			"hardwareMap": map[string]any{"device_1": t.machine.MAC.String(), "workflow": name},
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

// followWorkflow asks for the state of a machine's workflow until it has one that stays.
func (j *Journey) followWorkflow(ctx context.Context, t *traveller) {
	for {
		var workflow struct {
			Status struct{ State string }
		}
		err := j.Lab.Get(ctx, "workflows", workflowOf(t.machine), &workflow)
		if err == nil { // or the API server has ended, which is told by itself
			t.workflow = workflow.Status.State
		}
		switch t.workflow {
		case "SUCCESS", "FAILED", "TIMEOUT":
			detail := "Tinkerbell's API has it as " + t.workflow
			t.put(mark{step: StepWorkflow, ok: t.workflow == "SUCCESS", detail: detail})
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}
