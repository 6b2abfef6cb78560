package tink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Names on the wire.
const (
	service       = "proto.WorkflowService"
	methodContext = "GetWorkflowContexts"
	methodActions = "GetWorkflowActions"
	methodReport  = "ReportActionStatus"
)

// codec has gRPC carry the messages of this package under protobuf's name.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(message)
	if !ok {
		return nil, fmt.Errorf("failed to encode message: %T is none", v)
	}
	return Marshal(m), nil
}

func (codec) Unmarshal(data []byte, v any) error {
	m, ok := v.(message)
	if !ok {
		return fmt.Errorf("%w: %T is none", errWire, v)
	}
	return Unmarshal(data, m)
}

// Workflow is what the server has for a worker.
type Workflow struct {
	ID      string   `json:"id"`
	Actions []Action `json:"actions"`
}

// Server answers as Tink Server does: a worker that asks for contexts is streamed those of its workflows, and the
// stream ends; it asks again.
type Server struct {
	// Workflows by worker id.
	Workflows map[string][]Workflow
	// Hold keeps the stream of contexts open until the worker leaves, as newer versions do.
	Hold bool
	// Refused are ids of workers that are denied.
	Refused []string
	// Logger gets a line per call; nil discards.
	Logger *slog.Logger
}

// NewGRPC makes a gRPC server that serves s.
func NewGRPC(s *Server, opts ...grpc.ServerOption) *grpc.Server {
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	server := grpc.NewServer(append(opts, grpc.ForceServerCodec(codec{}))...)
	server.RegisterService(&description, s)
	return server
}

var description = grpc.ServiceDesc{
	ServiceName: service,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: methodActions, Handler: unary((*Server).actions)},
		{MethodName: methodReport, Handler: unary((*Server).report)},
	},
	Streams:  []grpc.StreamDesc{{StreamName: methodContext, Handler: contexts, ServerStreams: true}},
	Metadata: "internal/proto/workflow.proto",
}

// unary makes the handler of a method. The server has no interceptors, so none is called.
func unary[In any, Out any](call func(*Server, context.Context, *In) (*Out, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(In)
		if err := decode(in); err != nil {
			return nil, err
		}
		return call(srv.(*Server), ctx, in)
	}
}

func contexts(srv any, stream grpc.ServerStream) error {
	s := srv.(*Server)
	var in ContextRequest
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	if in.WorkerID == "" {
		return status.Error(codes.InvalidArgument, "invalid worker id")
	}
	if slices.Contains(s.Refused, in.WorkerID) {
		s.Logger.InfoContext(stream.Context(), "worker refused", "peer", peerOf(stream.Context()), "worker_id", in.WorkerID)
		return status.Errorf(codes.PermissionDenied, "worker %s is not known", in.WorkerID)
	}
	workflows := s.Workflows[in.WorkerID]
	s.Logger.InfoContext(stream.Context(), "contexts asked for", "peer", peerOf(stream.Context()),
		"worker_id", in.WorkerID, "workflows", len(workflows))
	for _, w := range workflows {
		out := &Context{WorkflowID: w.ID, CurrentWorker: in.WorkerID, TotalActions: int64(len(w.Actions))}
		if err := stream.SendMsg(out); err != nil {
			return err
		}
	}
	if s.Hold {
		<-stream.Context().Done()
	}
	return nil
}

func (s *Server) actions(ctx context.Context, in *ActionsRequest) (*Actions, error) {
	for _, workflows := range s.Workflows {
		for _, w := range workflows {
			if w.ID == in.WorkflowID {
				s.Logger.InfoContext(ctx, "actions asked for", "peer", peerOf(ctx), "workflow_id", w.ID)
				return &Actions{List: w.Actions}, nil
			}
		}
	}
	return nil, status.Errorf(codes.NotFound, "no workflow %q", in.WorkflowID)
}

func (s *Server) report(ctx context.Context, in *ActionStatus) (*Empty, error) {
	s.Logger.InfoContext(ctx, "action reported", "peer", peerOf(ctx), "workflow_id", in.WorkflowID,
		"worker_id", in.WorkerID, "action", in.ActionName, "state", in.Status.String(), "message", in.Message)
	return &Empty{}, nil
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// Client talks to a Tink Server, real or not.
type Client struct {
	conn *grpc.ClientConn
}

// Dial makes a client of the server at addr ("host:port"), in cleartext. Connections are made when they are used.
func Dial(addr string, opts ...grpc.DialOption) (*Client, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(codec{})),
	)...)
	if err != nil {
		return nil, fmt.Errorf("failed to make client of Tink Server %s: %w", addr, err)
	}
	return &Client{conn: conn}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Contexts reads the stream of a worker's workflows to its end.
func (c *Client) Contexts(ctx context.Context, workerID string) ([]Context, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Watch(ctx, workerID)
	if err != nil {
		return nil, err
	}
	var list []Context
	for {
		next, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, next)
	}
}

// Stream is a worker's stream of workflows.
type Stream struct{ stream grpc.ClientStream }

// Watch opens the stream of a worker's workflows, which ends with ctx at the latest.
func (c *Client) Watch(ctx context.Context, workerID string) (*Stream, error) {
	stream, err := c.conn.NewStream(ctx, &description.Streams[0], "/"+service+"/"+methodContext)
	if err != nil {
		return nil, fmt.Errorf("failed to open workflow stream: %w", err)
	}
	if err := stream.SendMsg(&ContextRequest{WorkerID: workerID}); err != nil {
		return nil, fmt.Errorf("failed to ask for workflows: %w", err)
	}
	if err := stream.CloseSend(); err != nil {
		return nil, fmt.Errorf("failed to ask for workflows: %w", err)
	}
	return &Stream{stream}, nil
}

// Next waits for the next workflow. At the stream's end the error is io.EOF.
func (s *Stream) Next() (Context, error) {
	var next Context
	err := s.stream.RecvMsg(&next)
	if err != nil && !errors.Is(err, io.EOF) {
		return next, fmt.Errorf("failed to read workflow stream: %w", err)
	}
	return next, err
}

// Actions asks for the actions of a workflow.
func (c *Client) Actions(ctx context.Context, workflowID string) ([]Action, error) {
	var out Actions
	in := &ActionsRequest{WorkflowID: workflowID}
	if err := c.conn.Invoke(ctx, "/"+service+"/"+methodActions, in, &out); err != nil {
		return nil, fmt.Errorf("failed to ask for actions of workflow %s: %w", workflowID, err)
	}
	return out.List, nil
}

// Report tells the state of an action.
func (c *Client) Report(ctx context.Context, report ActionStatus) error {
	if report.CreatedAt.IsZero() {
		report.CreatedAt = time.Now()
	}
	if err := c.conn.Invoke(ctx, "/"+service+"/"+methodReport, &report, &Empty{}); err != nil {
		return fmt.Errorf("failed to report action %s: %w", report.ActionName, err)
	}
	return nil
}
