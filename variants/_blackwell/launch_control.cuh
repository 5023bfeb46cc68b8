// A block that runs takes the work of one that has not started (PTX ISA: clusterlaunchcontrol). _hopper/hopper.cuh is put before
// this text.

// What a request is answered; opaque.
struct __align__(16) Response {
    u64 words[2];
};
constexpr int RESPONSE_BYTES = 16;

// By one thread: cancels the launch of a block that has not started, if there is one. The barrier counts the response's bytes.
__device__ __forceinline__ void request_block(Response &response, u64 &barrier)
{
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" ::"r"(
                     shared_address(&response)),
                 "r"(shared_address(&barrier))
                 : "memory");
}

// blockIdx.x of the cancelled block, or -1 if there was none.
__device__ __forceinline__ int cancelled_block(const Response &response)
{
    int block;
    asm volatile("{\n"
                 ".reg .b128 response;\n"
                 ".reg .pred is_cancelled;\n"
                 "ld.shared.b128 response, [%1];\n"
                 "mov.b32 %0, -1;\n"
                 "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 is_cancelled, response;\n"
                 "@is_cancelled clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, response;\n"
                 "}\n"
                 : "=r"(block)
                 : "r"(shared_address(&response))
                 : "memory");
    return block;
}
