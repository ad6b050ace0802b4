"""What `nvidia-smi` prints: `-q -x` of a workstation and of a node with slices, and its errors."""

from __future__ import annotations

REASONS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "display_clocks_setting",
)


def _reasons() -> str:
    """Each reason for low clocks; the GPU idles."""
    tags = [f"clocks_event_reason_{reason}" for reason in REASONS]
    return "\n".join(
        f"\t\t\t<{tag}>{'Active' if tag.endswith('gpu_idle') else 'Not Active'}</{tag}>"
        for tag in tags
    )


RTX_4090 = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Fri Nov 20 09:12:44 2026</timestamp>
\t<driver_version>570.124.06</driver_version>
\t<cuda_version>12.8</cuda_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:01:00.0">
\t\t<product_name>NVIDIA GeForce RTX 4090</product_name>
\t\t<product_brand>GeForce</product_brand>
\t\t<product_architecture>Ada Lovelace</product_architecture>
\t\t<display_mode>Requested functionality has been deprecated</display_mode>
\t\t<display_active>Enabled</display_active>
\t\t<persistence_mode>Disabled</persistence_mode>
\t\t<addressing_mode>HMM</addressing_mode>
\t\t<mig_mode>
\t\t\t<current_mig>N/A</current_mig>
\t\t\t<pending_mig>N/A</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\tNone
\t\t</mig_devices>
\t\t<driver_model>
\t\t\t<current_dm>N/A</current_dm>
\t\t\t<pending_dm>N/A</pending_dm>
\t\t</driver_model>
\t\t<serial>N/A</serial>
\t\t<uuid>GPU-8c5e2d1a-0000-1111-2222-333344445555</uuid>
\t\t<minor_number>0</minor_number>
\t\t<pci>
\t\t\t<pci_bus>01</pci_bus>
\t\t\t<pci_device>00</pci_device>
\t\t\t<pci_domain>0000</pci_domain>
\t\t\t<pci_device_id>268410DE</pci_device_id>
\t\t\t<pci_bus_id>00000000:01:00.0</pci_bus_id>
\t\t\t<pci_sub_system_id>88E71043</pci_sub_system_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>4</max_link_gen>
\t\t\t\t\t<current_link_gen>1</current_link_gen>
\t\t\t\t\t<device_current_link_gen>1</device_current_link_gen>
\t\t\t\t\t<max_device_link_gen>4</max_device_link_gen>
\t\t\t\t\t<max_host_link_gen>5</max_host_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>8x</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t</pci>
\t\t<fan_speed>0 %</fan_speed>
\t\t<performance_state>P8</performance_state>
\t\t<clocks_event_reasons>
{_reasons()}
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>24564 MiB</total>
\t\t\t<reserved>383 MiB</reserved>
\t\t\t<used>1243 MiB</used>
\t\t\t<free>22939 MiB</free>
\t\t</fb_memory_usage>
\t\t<bar1_memory_usage>
\t\t\t<total>32768 MiB</total>
\t\t\t<used>28 MiB</used>
\t\t\t<free>32740 MiB</free>
\t\t</bar1_memory_usage>
\t\t<compute_mode>Default</compute_mode>
\t\t<utilization>
\t\t\t<gpu_util>7 %</gpu_util>
\t\t\t<memory_util>3 %</memory_util>
\t\t</utilization>
\t\t<ecc_mode>
\t\t\t<current_ecc>Disabled</current_ecc>
\t\t\t<pending_ecc>Disabled</pending_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>N/A</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>N/A</sram_uncorrectable_parity>
\t\t\t\t<sram_uncorrectable_secded>N/A</sram_uncorrectable_secded>
\t\t\t\t<dram_correctable>N/A</dram_correctable>
\t\t\t\t<dram_uncorrectable>N/A</dram_uncorrectable>
\t\t\t</volatile>
\t\t</ecc_errors>
\t\t<retired_pages>
\t\t\t<multiple_single_bit_retirement>
\t\t\t\t<retired_count>N/A</retired_count>
\t\t\t\t<retired_pagelist>N/A</retired_pagelist>
\t\t\t</multiple_single_bit_retirement>
\t\t\t<double_bit_retirement>
\t\t\t\t<retired_count>N/A</retired_count>
\t\t\t\t<retired_pagelist>N/A</retired_pagelist>
\t\t\t</double_bit_retirement>
\t\t\t<pending_blacklist>N/A</pending_blacklist>
\t\t\t<pending_retirement>N/A</pending_retirement>
\t\t</retired_pages>
\t\t<remapped_rows>N/A</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>41 C</gpu_temp>
\t\t\t<gpu_temp_tlimit>42 C</gpu_temp_tlimit>
\t\t\t<gpu_temp_max_tlimit_threshold>-7 C</gpu_temp_max_tlimit_threshold>
\t\t\t<gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold>
\t\t\t<gpu_target_temperature>83 C</gpu_target_temperature>
\t\t\t<memory_temp>N/A</memory_temp>
\t\t</temperature>
\t\t<gpu_power_readings>
\t\t\t<power_state>P8</power_state>
\t\t\t<average_power_draw>21.40 W</average_power_draw>
\t\t\t<instant_power_draw>22.07 W</instant_power_draw>
\t\t\t<current_power_limit>320.00 W</current_power_limit>
\t\t\t<requested_power_limit>320.00 W</requested_power_limit>
\t\t\t<default_power_limit>450.00 W</default_power_limit>
\t\t\t<min_power_limit>10.00 W</min_power_limit>
\t\t\t<max_power_limit>600.00 W</max_power_limit>
\t\t</gpu_power_readings>
\t\t<module_power_readings>
\t\t\t<power_state>P8</power_state>
\t\t\t<current_power_limit>N/A</current_power_limit>
\t\t</module_power_readings>
\t\t<clocks>
\t\t\t<graphics_clock>210 MHz</graphics_clock>
\t\t\t<sm_clock>210 MHz</sm_clock>
\t\t\t<mem_clock>405 MHz</mem_clock>
\t\t\t<video_clock>1185 MHz</video_clock>
\t\t</clocks>
\t\t<max_clocks>
\t\t\t<graphics_clock>3105 MHz</graphics_clock>
\t\t\t<sm_clock>3105 MHz</sm_clock>
\t\t\t<mem_clock>10501 MHz</mem_clock>
\t\t\t<video_clock>2415 MHz</video_clock>
\t\t</max_clocks>
\t\t<fabric>
\t\t\t<state>N/A</state>
\t\t\t<status>N/A</status>
\t\t</fabric>
\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>1802</pid>
\t\t\t\t<type>G</type>
\t\t\t\t<process_name>/usr/lib/xorg/Xorg</process_name>
\t\t\t\t<used_memory>312 MiB</used_memory>
\t\t\t</process_info>
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>20991</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>[Not Found]</process_name>
\t\t\t\t<used_memory>N/A</used_memory>
\t\t\t</process_info>
\t\t</processes>
\t</gpu>
</nvidia_smi_log>
"""


def _a100(index: int, bus: str, mig: str) -> str:
    return f"""
\t<gpu id="00000000:{bus}:00.0">
\t\t<product_name>NVIDIA A100-SXM4-40GB</product_name>
\t\t<product_brand>NVIDIA</product_brand>
\t\t<product_architecture>Ampere</product_architecture>
\t\t<display_mode>Enabled</display_mode>
\t\t<display_active>Disabled</display_active>
\t\t<persistence_mode>Enabled</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>{mig}</current_mig>
\t\t\t<pending_mig>{mig}</pending_mig>
\t\t</mig_mode>
\t\t<mig_devices>
\t\t\t<mig_device>
\t\t\t\t<index>0</index>
\t\t\t\t<gpu_instance_id>1</gpu_instance_id>
\t\t\t\t<compute_instance_id>0</compute_instance_id>
\t\t\t\t<fb_memory_usage>
\t\t\t\t\t<total>20096 MiB</total>
\t\t\t\t\t<reserved>0 MiB</reserved>
\t\t\t\t\t<used>12 MiB</used>
\t\t\t\t\t<free>20083 MiB</free>
\t\t\t\t</fb_memory_usage>
\t\t\t</mig_device>
\t\t</mig_devices>
\t\t<uuid>GPU-0000000{index}-1111-2222-3333-444444444444</uuid>
\t\t<pci>
\t\t\t<pci_device_id>20B010DE</pci_device_id>
\t\t\t<pci_bus_id>00000000:{bus}:00.0</pci_bus_id>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<pcie_gen>
\t\t\t\t\t<max_link_gen>4</max_link_gen>
\t\t\t\t\t<current_link_gen>4</current_link_gen>
\t\t\t\t</pcie_gen>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>16x</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t</pci>
\t\t<clocks_throttle_reasons>
\t\t\t<clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
\t\t\t<clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap>
\t\t\t<clocks_throttle_reason_hw_slowdown>Not Active</clocks_throttle_reason_hw_slowdown>
\t\t</clocks_throttle_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>40960 MiB</total>
\t\t\t<reserved>571 MiB</reserved>
\t\t\t<used>24 MiB</used>
\t\t\t<free>40364 MiB</free>
\t\t</fb_memory_usage>
\t\t<compute_mode>Exclusive_Process</compute_mode>
\t\t<utilization>
\t\t\t<gpu_util>N/A</gpu_util>
\t\t\t<memory_util>N/A</memory_util>
\t\t</utilization>
\t\t<ecc_mode>
\t\t\t<current_ecc>Enabled</current_ecc>
\t\t\t<pending_ecc>Enabled</pending_ecc>
\t\t</ecc_mode>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable>0</sram_uncorrectable>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>1</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<sram_correctable>3</sram_correctable>
\t\t\t\t<sram_uncorrectable>2</sram_uncorrectable>
\t\t\t\t<dram_correctable>0</dram_correctable>
\t\t\t\t<dram_uncorrectable>5</dram_uncorrectable>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<remapped_rows>
\t\t\t<remapped_row_corr>0</remapped_row_corr>
\t\t\t<remapped_row_unc>1</remapped_row_unc>
\t\t\t<remapped_row_pending>Yes</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<temperature>
\t\t\t<gpu_temp>33 C</gpu_temp>
\t\t\t<gpu_temp_max_threshold>92 C</gpu_temp_max_threshold>
\t\t\t<gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold>
\t\t</temperature>
\t\t<power_readings>
\t\t\t<power_state>P0</power_state>
\t\t\t<power_management>Supported</power_management>
\t\t\t<power_draw>54.28 W</power_draw>
\t\t\t<power_limit>400.00 W</power_limit>
\t\t\t<default_power_limit>400.00 W</default_power_limit>
\t\t\t<enforced_power_limit>400.00 W</enforced_power_limit>
\t\t\t<min_power_limit>100.00 W</min_power_limit>
\t\t\t<max_power_limit>400.00 W</max_power_limit>
\t\t</power_readings>
\t\t<clocks>
\t\t\t<graphics_clock>210 MHz</graphics_clock>
\t\t\t<sm_clock>210 MHz</sm_clock>
\t\t\t<mem_clock>1215 MHz</mem_clock>
\t\t</clocks>
\t\t<max_clocks>
\t\t\t<sm_clock>1410 MHz</sm_clock>
\t\t\t<mem_clock>1215 MHz</mem_clock>
\t\t</max_clocks>
\t\t<processes>
\t\t</processes>
\t</gpu>"""


A100_MIG = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
\t<timestamp>Thu Nov 19 17:40:02 2026</timestamp>
\t<driver_version>525.147.05</driver_version>
\t<cuda_version>12.0</cuda_version>
\t<attached_gpus>2</attached_gpus>{_a100(0, "07", "Disabled")}{_a100(1, "0F", "Enabled")}
</nvidia_smi_log>
"""
A100_LIST = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-1111-2222-3333-444444444444)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-00000001-1111-2222-3333-444444444444)
  MIG 3g.20gb     Device  0: (UUID: MIG-5cf1bcf8-aaaa-5555-bbbb-0123456789ab)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-6cf1bcf8-aaaa-5555-bbbb-0123456789ab)
"""

CANNOT_TALK = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n\n"
)
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107\n"
)
LOST = (
    "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n"
    "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n"
)
