// SPDX-License-Identifier: Apache-2.0
// Group and instance norm: read, hand over to the back end.
#include "api/channel_calls.h"
#include "core/read_group_norm.h"

using namespace normact;
using namespace normact::api;

normact_status normact_group_norm_forward(const normact_group_norm_desc* desc,
                                          const normact_group_norm_forward_args* args, const normact_exec* exec) {
  return run_call<ChannelForward>(__func__, read_group_norm_forward, desc, args, exec, channel_forward);
}

normact_status normact_group_norm_forward_workspace(const normact_group_norm_desc* desc,
                                                    const normact_group_norm_forward_args* args,
                                                    const normact_exec* exec, size_t* bytes) {
  return query_call<ChannelForward>(__func__, read_group_norm_forward, desc, args, exec, bytes,
                                    channel_forward_workspace);
}

normact_status normact_group_norm_backward(const normact_group_norm_desc* desc,
                                           const normact_group_norm_backward_args* args, const normact_exec* exec) {
  return run_call<ChannelBackward>(__func__, read_group_norm_backward, desc, args, exec, channel_backward);
}

normact_status normact_group_norm_backward_workspace(const normact_group_norm_desc* desc,
                                                     const normact_group_norm_backward_args* args,
                                                     const normact_exec* exec, size_t* bytes) {
  return query_call<ChannelBackward>(__func__, read_group_norm_backward, desc, args, exec, bytes,
                                     channel_backward_workspace);
}
