// Collectives as asynchronous operations of TensorFlow: no thread waits in them for longer than a moment (PatienceOf), tensors of the CPU are
// not copied.
//
// A pending operation holds its tensors' buffers until the engine is done, so that a step that is cancelled need not wait for other ranks.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kept_memory.h"
#include "phalanx_native.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/types.h"

namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

const phalanx_table* g_table = nullptr;

enum Kind { kAllreduce = 0, kAllgather = 1, kBroadcast = 2, kAlltoall = 3, kReducescatter = 4, kBarrier = 5, kCompare = 6 };

int CodeOf(DataType type) {
  switch (type) {
    case tensorflow::DT_UINT8: return 0;
    case tensorflow::DT_INT8: return 1;
    case tensorflow::DT_UINT16: return 2;
    case tensorflow::DT_INT16: return 3;
    case tensorflow::DT_INT32: return 4;
    case tensorflow::DT_INT64: return 5;
    case tensorflow::DT_HALF: return 6;
    case tensorflow::DT_BFLOAT16: return 7;
    case tensorflow::DT_FLOAT: return 8;
    case tensorflow::DT_DOUBLE: return 9;
    case tensorflow::DT_BOOL: return 10;
    default: return -1;
  }
}

// Tensors as the engine sees them; the shapes live as long as this.
struct Seen {
  std::vector<std::vector<uint64_t>> shapes;
  std::vector<phalanx_tensor> tensors;

  explicit Seen(const std::vector<Tensor>& all) {
    shapes.reserve(all.size());
    for (const Tensor& tensor : all) {
      std::vector<uint64_t> shape;
      for (int d = 0; d < tensor.dims(); ++d) shape.push_back(tensor.dim_size(d));
      shapes.push_back(std::move(shape));
      phalanx_tensor seen;
      seen.address = const_cast<char*>(tensor.tensor_data().data());
      seen.shape = shapes.back().data();
      seen.n_dims = shapes.back().size();
      seen.dtype = CodeOf(tensor.dtype());
      tensors.push_back(seen);
    }
  }
};

absl::Status StatusOf(const phalanx_result* result) {
  std::string text(result->message, result->n_message);
  switch (result->code) {
    case 1: return absl::InvalidArgumentError(text);
    case 2: return absl::FailedPreconditionError(text);
    // Not Aborted or Unavailable, after which monitored sessions would begin again by themselves, one rank without the others.
    default: return absl::UnknownError(text);
  }
}

// Memory for a result: kept memory for a large one.
absl::Status MakeOutput(OpKernelContext* ctx, int i, const TensorShape& shape, Tensor** output) {
  const DataType type = ctx->expected_output_dtype(i);
  if (shape.num_elements() * tensorflow::DataTypeSize(type) < phalanx::KeptMemory::kLeastBytes) {
    return ctx->allocate_output(i, shape, output);
  }
  Tensor made(phalanx::KeptMemory::Get(), type, shape);
  if (!made.IsInitialized()) {
    return absl::ResourceExhaustedError("there is no memory for a result of " + shape.DebugString());
  }
  ctx->set_output(i, made);
  *output = ctx->mutable_output(i);
  return absl::OkStatus();
}

// One operation between its submission and the engine's answer.
struct Pending {
  OpKernelContext* ctx;
  AsyncOpKernel::DoneCallback done;
  Kind kind;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  CancellationManager* manager = nullptr;
  tensorflow::CancellationToken token = 0;
  // Whether the step has heard of it: from the engine or by its cancellation, whichever came first. Then the context may be gone.
  std::shared_ptr<std::atomic<bool>> is_told = std::make_shared<std::atomic<bool>>(false);

  // Copies results that the engine made.
  absl::Status Take(const phalanx_result* result) {
    if (kind == kAllreduce || kind == kBroadcast || kind == kBarrier || kind == kCompare) return absl::OkStatus();
    for (size_t i = 0; i < result->n_tensors; ++i) {
      const phalanx_tensor& made = result->tensors[i];
      TensorShape shape;
      for (uint32_t d = 0; d < made.n_dims; ++d) shape.AddDim(made.shape[d]);
      Tensor* output = nullptr;
      absl::Status status = MakeOutput(ctx, i, shape, &output);
      if (!status.ok()) return status;
      if (output->TotalBytes() > 0) {
        std::memcpy(const_cast<char*>(output->tensor_data().data()), made.address, output->TotalBytes());
      }
    }
    if (kind != kAlltoall) return absl::OkStatus();
    Tensor* received = nullptr;
    TensorShape shape({static_cast<int64_t>(result->n_received)});
    absl::Status status = ctx->allocate_output(1, shape, &received);
    if (!status.ok()) return status;
    for (size_t r = 0; r < result->n_received; ++r) received->flat<int64_t>()(r) = result->received[r];
    return absl::OkStatus();
  }
};

void Answered(void* context, const phalanx_result* result) {
  std::unique_ptr<Pending> pending(static_cast<Pending*>(context));
  if (pending->is_told->exchange(true)) return;  // Cancelled: only the buffers were still ours.
  if (pending->manager != nullptr) pending->manager->TryDeregisterCallback(pending->token);
  absl::Status status = result->code == 0 ? pending->Take(result) : StatusOf(result);
  if (!status.ok()) pending->ctx->SetStatus(status);
  AsyncOpKernel::DoneCallback done = std::move(pending->done);
  pending.reset();
  done();
}

// Small tensors of ranks that come at the same time are done sooner than a thread of the engine's wakes up: the calling thread does them
// itself. In eager code it would wait in any case.
uint32_t PatienceOf(bool is_awaited, const std::vector<Tensor>& tensors) {
  constexpr size_t kSmallBytes = 256 << 10;
  constexpr uint32_t kSmallUs = 100;
  if (is_awaited) return UINT32_MAX;
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.TotalBytes();
  return bytes <= kSmallBytes ? kSmallUs : 0;
}

class Collective : public AsyncOpKernel {
 public:
  explicit Collective(OpKernelConstruction* c) : AsyncOpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("kind", &kind_));
    OP_REQUIRES_OK(c, c->GetAttr("reduce_op", &op_));
    OP_REQUIRES_OK(c, c->GetAttr("grouped", &grouped_));
    OP_REQUIRES_OK(c, c->GetAttr("process_set", &set_));
    OP_REQUIRES_OK(c, c->GetAttr("root", &root_));
    OP_REQUIRES_OK(c, c->GetAttr("wire", &wire_));
    // As the bits of a double: attributes have only 32 bits for a number with a fraction.
    int64_t before, after;
    OP_REQUIRES_OK(c, c->GetAttr("prescale", &before));
    OP_REQUIRES_OK(c, c->GetAttr("postscale", &after));
    std::memcpy(&prescale_, &before, sizeof prescale_);
    std::memcpy(&postscale_, &after, sizeof postscale_);
    OP_REQUIRES_OK(c, c->GetAttr("awaited", &awaited_));
    OP_REQUIRES_OK(c, c->GetAttr("tensor_name", &tensor_name_));
    OP_REQUIRES_OK(c, c->GetAttr("note", &note_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_ASYNC(ctx, g_table != nullptr, absl::FailedPreconditionError("import phalanx.tensorflow first"), done);
    auto pending = std::make_unique<Pending>();
    pending->ctx = ctx;
    pending->kind = static_cast<Kind>(kind_);
    std::vector<uint64_t> splits;
    int n = ctx->num_inputs();
    if (kind_ == kAlltoall) {
      n = 1;
      auto rows = ctx->input(1).flat<int64_t>();
      for (int64_t i = 0; i < rows.size(); ++i) {
        OP_REQUIRES_ASYNC(ctx, rows(i) >= 0,
                          absl::InvalidArgumentError("splits must be whole numbers from 0, the rows for each rank"), done);
        splits.push_back(rows(i));
      }
    }
    const bool keeps_shape = kind_ == kAllreduce || kind_ == kBroadcast;
    bool any_forwarded = false;
    std::vector<bool> forwarded(n, false);
    for (int i = 0; i < n; ++i) {
      const Tensor& input = ctx->input(i);
      OP_REQUIRES_ASYNC(ctx, CodeOf(input.dtype()) >= 0,
                        absl::InvalidArgumentError("tensors of " + tensorflow::DataTypeString(input.dtype()) +
                                                   " are not supported: convert them with tf.cast() first"),
                        done);
      pending->inputs.push_back(input);
    }
    if (keeps_shape) {
      pending->inputs.clear();  // A second reference would forbid to forward a buffer.
      for (int i = 0; i < n; ++i) {
        Tensor* output = nullptr;
        const TensorShape shape = ctx->input(i).shape();
        forwarded[i] = ctx->forward_input_to_output_with_shape(i, i, shape, &output);
        if (!forwarded[i]) OP_REQUIRES_OK_ASYNC(ctx, MakeOutput(ctx, i, shape, &output), done);
        any_forwarded |= forwarded[i];
        pending->outputs.push_back(*output);
      }
      for (int i = 0; i < n; ++i) pending->inputs.push_back(forwarded[i] ? pending->outputs[i] : ctx->input(i));
      // In place all of them or none: what could not be forwarded is copied then.
      for (int i = 0; any_forwarded && i < n; ++i) {
        if (forwarded[i]) continue;
        Tensor& to = pending->outputs[i];
        if (to.TotalBytes() > 0) {
          std::memcpy(const_cast<char*>(to.tensor_data().data()), ctx->input(i).tensor_data().data(), to.TotalBytes());
        }
        pending->inputs[i] = to;
      }
    }
    Seen inputs(pending->inputs);
    Seen outputs(pending->outputs);
    phalanx_request request = Request();
    request.patience_us = PatienceOf(awaited_, pending->inputs);
    request.inputs = inputs.tensors.data();
    request.outputs = keeps_shape && !any_forwarded ? outputs.tensors.data() : nullptr;
    request.n_tensors = n;
    request.splits = splits.data();
    request.n_splits = splits.size();
    Submit(ctx, request, std::move(pending), std::move(done));
  }

 protected:
  // What every request is told by the node's attributes.
  phalanx_request Request() const {
    phalanx_request request = {};
    request.kind = kind_;
    request.op = op_;
    request.grouped = grouped_;
    request.process_set = set_;
    request.root = root_;
    request.wire = wire_;
    request.prescale = prescale_;
    request.postscale = postscale_;
    request.name = tensor_name_.data();
    request.n_name = tensor_name_.size();
    request.note = note_.data();
    request.n_note = note_.size();
    return request;
  }

  static void Submit(OpKernelContext* ctx, const phalanx_request& request, std::unique_ptr<Pending> pending, DoneCallback done) {
    pending->done = std::move(done);
    Pending* raw = pending.release();
    if (CancellationManager* manager = ctx->cancellation_manager()) {
      raw->manager = manager;
      raw->token = manager->get_cancellation_token();
      auto cancel = [ctx, callback = raw->done, is_told = raw->is_told]() {
        if (is_told->exchange(true)) return;
        ctx->SetStatus(absl::CancelledError("the step was cancelled while this operation waited for other ranks"));
        callback();
      };
      if (!manager->RegisterCallback(raw->token, cancel)) {
        delete raw;
        cancel();
        return;
      }
    }
    g_table->submit(&request, Answered, raw);
  }

 private:
  int kind_, op_, set_, root_, wire_;
  bool grouped_, awaited_;
  double prescale_, postscale_;
  std::string tensor_name_, note_;
};

// Compares variables with those of other ranks, in the first reductions of gradients. In the others it reads nothing.
class Compare : public Collective {
 public:
  explicit Compare(OpKernelConstruction* c) : Collective(c) {
    OP_REQUIRES_OK(c, c->GetAttr("words", &words_));
    OP_REQUIRES_OK(c, c->GetAttr("key", &key_));
  }

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    OP_REQUIRES_ASYNC(ctx, g_table != nullptr, absl::FailedPreconditionError("import phalanx.tensorflow first"), done);
    phalanx_request request = Request();
    request.turn = g_table->turn(request.process_set, key_.data(), key_.size());
    if (request.turn == 0) return done();
    auto pending = std::make_unique<Pending>();
    pending->ctx = ctx;
    pending->kind = kCompare;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (ctx->input_dtype(i) != tensorflow::DT_RESOURCE) {
        pending->inputs.push_back(ctx->input(i));
        continue;
      }
      tensorflow::core::RefCountPtr<tensorflow::Var> variable;
      OP_REQUIRES_OK_ASYNC(ctx, tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, i), &variable), done);
      tensorflow::tf_shared_lock held(*variable->mu());
      pending->inputs.push_back(*variable->tensor());
    }
    Seen inputs(pending->inputs);
    request.patience_us = PatienceOf(false, {});
    request.inputs = inputs.tensors.data();
    request.n_tensors = inputs.tensors.size();
    request.words = words_.data();
    request.n_words = words_.size();
    Submit(ctx, request, std::move(pending), std::move(done));
  }

 private:
  std::string words_, key_;
};

absl::Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

absl::Status OtherRows(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    ShapeHandle shape;
    if (!c->RankKnown(c->input(i)) || c->Rank(c->input(i)) == 0) {
      c->set_output(i, c->UnknownShape());
      continue;
    }
    TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(i), 0, c->UnknownDim(), &shape));
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

absl::Status Exchanged(InferenceContext* c) {
  ShapeHandle shape = c->UnknownShape();
  if (c->RankKnown(c->input(0)) && c->Rank(c->input(0)) > 0) {
    TF_RETURN_IF_ERROR(c->ReplaceDim(c->input(0), 0, c->UnknownDim(), &shape));
  }
  c->set_output(0, shape);
  c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

}  // namespace

#define PHALANX_TYPES "{uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}"
#define PHALANX_ATTRS(kind)        \
  Attr("kind: int = " #kind)       \
      .Attr("reduce_op: int = 1")  \
      .Attr("grouped: bool = false") \
      .Attr("process_set: int = 0") \
      .Attr("root: int = 0")       \
      .Attr("wire: int = -1")      \
      .Attr("prescale: int = 4607182418800017408") \
      .Attr("postscale: int = 4607182418800017408") \
      .Attr("awaited: bool = false") \
      .Attr("tensor_name: string = ''") \
      .Attr("note: string = ''")

// Stateful: nothing is folded, merged or left out, and functions run them in the program's order.
REGISTER_OP("PhalanxAllreduce")
    .Input("tensors: T")
    .Output("reduced: T")
    .Attr("T: list(" PHALANX_TYPES ")")
    .PHALANX_ATTRS(0)
    .SetIsStateful()
    .SetShapeFn(SameShapes);
REGISTER_OP("PhalanxAllgather")
    .Input("tensors: T")
    .Output("gathered: T")
    .Attr("T: list(" PHALANX_TYPES ")")
    .PHALANX_ATTRS(1)
    .SetIsStateful()
    .SetShapeFn(OtherRows);
REGISTER_OP("PhalanxBroadcast")
    .Input("tensor: T")
    .Output("value: T")
    .Attr("T: " PHALANX_TYPES)
    .PHALANX_ATTRS(2)
    .SetIsStateful()
    .SetShapeFn(SameShapes);
REGISTER_OP("PhalanxAlltoall")
    .Input("tensor: T")
    .Input("splits: int64")
    .Output("rows: T")
    .Output("received: int64")
    .Attr("T: " PHALANX_TYPES)
    .PHALANX_ATTRS(3)
    .SetIsStateful()
    .SetShapeFn(Exchanged);
REGISTER_OP("PhalanxReducescatter")
    .Input("tensors: T")
    .Output("rows: T")
    .Attr("T: list(" PHALANX_TYPES ")")
    .PHALANX_ATTRS(4)
    .SetIsStateful()
    .SetShapeFn(OtherRows);
REGISTER_OP("PhalanxBarrier").PHALANX_ATTRS(5).SetIsStateful().SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("PhalanxCompare")
    .Input("handles: n_handles * resource")
    .Input("values: T")
    .Attr("n_handles: int >= 0")
    .Attr("T: list(" PHALANX_TYPES ") >= 0")
    .PHALANX_ATTRS(6)
    .Attr("words: string = ''")
    .Attr("key: string = ''")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("PhalanxAllreduce").Device(tensorflow::DEVICE_CPU), Collective);
REGISTER_KERNEL_BUILDER(Name("PhalanxAllgather").Device(tensorflow::DEVICE_CPU), Collective);
REGISTER_KERNEL_BUILDER(Name("PhalanxBroadcast").Device(tensorflow::DEVICE_CPU), Collective);
REGISTER_KERNEL_BUILDER(Name("PhalanxAlltoall").Device(tensorflow::DEVICE_CPU), Collective);
REGISTER_KERNEL_BUILDER(Name("PhalanxReducescatter").Device(tensorflow::DEVICE_CPU), Collective);
REGISTER_KERNEL_BUILDER(Name("PhalanxBarrier").Device(tensorflow::DEVICE_CPU), Collective);
REGISTER_KERNEL_BUILDER(Name("PhalanxCompare").Device(tensorflow::DEVICE_CPU), Compare);

// The engine of this process: the module phalanx._phalanx, which is loaded already, gives the address.
extern "C" int phalanx_attach(const phalanx_table* table) {
  if (table->version != PHALANX_NATIVE_VERSION) return 1;
  g_table = table;
  return 0;
}
